//! Real hubs and real agents on loopback. They need the kernels (`cargo xtask kernels`) and Fashion-MNIST.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, also in its helpers")]

mod crashes;
mod exactness;
mod hostile;
mod memory;
mod overhead;
mod training;

/// Whether Fashion-MNIST is here; otherwise says that the test is skipped.
fn has_data() -> bool {
    let place = std::path::Path::new("/usr/share/datasets/fashion-mnist");
    let cache = omnilearn_agent::config::default_cache().join("datasets/fashion-mnist");
    let has = place.exists() || cache.exists();
    if !has {
        println!("skipped: Fashion-MNIST is not on this machine, `cargo xtask fetch-data fashion-mnist` gets it");
    }
    has
}
