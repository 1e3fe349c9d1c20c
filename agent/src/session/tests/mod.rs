//! The session against a hub that each test plays, with compute that each test controls.

mod broker;
mod connecting;
mod failing;
mod fake;
mod fetching;
mod mosquitto;
mod ordering;
mod signing;
mod training;

use std::sync::Arc;

use super::ComputeFactory;

/// Any compute, for tests that never get so far.
pub(super) fn fake_factory() -> Arc<dyn ComputeFactory> {
    fake::FakeFactory::new(8)
}
