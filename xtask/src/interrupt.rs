//! Ctrl-C and termination as a flag that loops look at, so that whatever was started is also ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use signal_hook::consts::{SIGINT, SIGTERM};

/// Whether somebody asked the program to end. The second signal ends it at once.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt {
    raised: Arc<AtomicBool>,
}

impl Interrupt {
    /// Starts to listen.
    ///
    /// # Errors
    /// When the operating system refuses the handlers.
    pub(crate) fn listen() -> anyhow::Result<Self> {
        let raised = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // In this order: the first signal finds the flag down and raises it, the second finds it up.
            signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&raised))
                .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&raised)))
                .context("listening for Ctrl-C")?;
        }
        Ok(Self { raised })
    }

    /// Ends the caller's work with an error once a signal has come.
    ///
    /// # Errors
    /// `interrupted` after a signal.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        if self.raised.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        Ok(())
    }

    /// Waits, but not past a signal.
    ///
    /// # Errors
    /// `interrupted` after a signal.
    pub(crate) fn sleep(&self, duration: Duration) -> anyhow::Result<()> {
        let end = Instant::now() + duration;
        loop {
            self.check()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
    }
}
