//! A job under a virtual clock: agents of given speeds, real gradients of a tiny model, and everything that can go wrong.
#![expect(clippy::unwrap_used, reason = "tests")]

mod arrivals;
mod asp;
mod bsp;
mod cluster;
mod evaluation;
mod failures;
mod large_models;
mod late_timings;
mod parts;
mod pushes;
mod rounds;
mod rules;
