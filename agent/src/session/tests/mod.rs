//! The session against a hub that each test plays, with compute that each test controls.

mod connecting;
mod fake;
mod failing;
mod training;
