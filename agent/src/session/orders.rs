//! What the fleet's operator wants of an agent, as far as the session with the hub has to do something about it.

use std::num::NonZeroU32;
use std::sync::Arc;

use tokio::sync::watch;

use crate::config::Secrets;

/// What holds until other orders come. Every change ends the connection to the hub, and the next one follows them.
#[derive(Clone, Debug, Default)]
pub(super) struct Orders {
    /// Whether the agent stays away from the hub.
    pub(super) paused: bool,
    /// Largest batch that the agent takes, whatever it could.
    pub(super) batch_max: Option<NonZeroU32>,
    /// What was read again, in the place of what the agent started with.
    pub(super) secrets: Option<Arc<Secrets>>,
    /// How often the agent was told to begin anew.
    pub(super) starts: u64,
    /// Why they changed last, for the hub.
    pub(super) reason: &'static str,
}

/// Where orders are given.
#[derive(Clone, Debug, Default)]
pub(super) struct Helm(watch::Sender<Orders>);

impl Helm {
    /// Where they are followed.
    pub(super) fn follow(&self) -> watch::Receiver<Orders> {
        self.0.subscribe()
    }

    /// Stays away from the hub, or comes back.
    pub(super) fn pause(&self, paused: bool) {
        self.0.send_if_modified(|orders| {
            orders.reason = if paused { "paused" } else { "resumed" };
            std::mem::replace(&mut orders.paused, paused) != paused
        });
    }

    /// Takes no larger batches than this.
    pub(super) fn limit_batch(&self, batch_max: Option<NonZeroU32>) {
        self.0.send_if_modified(|orders| {
            orders.reason = "its largest batch has changed";
            std::mem::replace(&mut orders.batch_max, batch_max) != batch_max
        });
    }

    /// Begins anew, with these secrets if there are any.
    pub(super) fn start_over(&self, secrets: Option<Secrets>) {
        self.0.send_modify(|orders| {
            orders.reason = "its configuration was read again";
            orders.starts += 1;
            orders.secrets = secrets.map(Arc::new).or(orders.secrets.take());
        });
    }

    /// The largest batch that is allowed.
    pub(super) fn batch_max(&self) -> Option<NonZeroU32> {
        self.0.borrow().batch_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_that_changes_nothing_ends_no_connection() {
        let helm = Helm::default();
        let mut orders = helm.follow();
        let mut changed = || {
            let changed = orders.has_changed().unwrap();
            orders.mark_unchanged();
            changed
        };
        helm.pause(false);
        helm.limit_batch(None);
        assert!(!changed());
        helm.pause(true);
        assert!(changed());
        helm.pause(true);
        assert!(!changed());
        helm.limit_batch(NonZeroU32::new(8));
        assert!(changed());
        helm.start_over(None);
        assert!(changed());
        assert!(helm.follow().borrow().paused);
    }
}
