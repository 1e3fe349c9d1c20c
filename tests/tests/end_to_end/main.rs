//! Real hubs and real agents on loopback. They need the kernels (`cargo xtask kernels`) and Fashion-MNIST.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, also in its helpers")]

mod compose;
mod crashes;
mod datasets;
mod exactness;
#[cfg(feature = "gpu")]
mod gpu;
mod hostile;
mod memory;
mod mqtt;
mod overhead;
mod quota;
mod rules;
mod signatures;
mod train_step;
mod training;
mod weights;

use omnilearn_agent::config::default_cache;
use omnilearn_agent::dataset::{Dataset, DatasetError};

/// Whether Fashion-MNIST is here; otherwise says that the test is skipped.
fn has_data() -> bool {
    match Dataset::open("fashion-mnist", &[], &default_cache()) {
        Ok(_) => true,
        Err(missing @ DatasetError::Missing { .. }) => {
            println!("skipped: {missing}");
            false
        }
        Err(damaged) => panic!("{damaged}"),
    }
}
