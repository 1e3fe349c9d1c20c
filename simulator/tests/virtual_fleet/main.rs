//! What the virtual fleet must show, without gradients where arithmetic is enough.

mod command_line;
mod departures;
mod fixtures;
mod limits;
mod repeatable;
mod staleness;
mod training;
mod transfers;
