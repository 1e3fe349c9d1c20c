//! Does what the fleet's operator asks for.

use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use omnilearn_mqtt::command::Command;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::config::Sources;
use crate::health::Health;
use crate::session::compute::ComputeFactory;
use crate::session::orders::Helm;

/// How long leaving the hub may take before the command is answered all the same.
const LEAVING_PATIENCE: Duration = Duration::from_secs(5);

/// What commands act on.
#[derive(Clone)]
pub(in crate::session) struct Hands {
    pub(in crate::session) helm: Helm,
    pub(in crate::session) health: watch::Receiver<Health>,
    pub(in crate::session) factory: Arc<dyn ComputeFactory>,
    pub(in crate::session) sources: Option<Sources>,
}

impl Hands {
    /// Does a command and returns what the operator gets to see.
    ///
    /// # Errors
    /// Why it was not done; nothing has changed then.
    pub(super) async fn perform(mut self, command: Command) -> Result<Value, String> {
        match command {
            Command::Pause => {
                self.helm.pause(true);
                let paused = self.health.wait_for(|health| matches!(health, Health::Paused { .. }));
                let _ = tokio::time::timeout(LEAVING_PATIENCE, paused).await; // it is on its way out in any case
                Ok(json!({ "paused": true }))
            }
            Command::Resume => {
                self.helm.pause(false);
                Ok(json!({ "paused": false }))
            }
            Command::Identify => Ok(json!({})),
            Command::Limits { threads, batch_max } => self.limit(threads, batch_max),
            Command::Reload => self.reload(),
            Command::SelfTest => {
                let factory = Arc::clone(&self.factory);
                let test = tokio::task::spawn_blocking(move || factory.test_itself());
                test.await.unwrap_or_else(|error| Err(format!("the self-test broke off: {error}")))
            }
        }
    }

    /// What is absent stays as it is; 0 gives back what the agent began with.
    fn limit(&self, threads: Option<u32>, batch_max: Option<u32>) -> Result<Value, String> {
        let mut result = json!({});
        if let Some(threads) = threads {
            let threads = usize::try_from(threads).unwrap_or(usize::MAX);
            result["threads"] = json!(self.factory.limit_threads(NonZeroUsize::new(threads))?);
        }
        if let Some(batch_max) = batch_max {
            self.helm.limit_batch(NonZeroU32::new(batch_max));
        }
        result["batch_max"] = json!(self.helm.batch_max());
        Ok(result)
    }

    fn reload(&self) -> Result<Value, String> {
        let secrets = self.sources.as_ref().map(Sources::read).transpose()?;
        self.factory.look_again();
        self.helm.start_over(secrets);
        Ok(json!({ "machine": self.factory.machine() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::tests::fake_factory;

    fn hands() -> Hands {
        let health = watch::Sender::new(Health::Paused { hub: String::new() });
        Hands { helm: Helm::default(), health: health.subscribe(), factory: fake_factory(), sources: None }
    }

    #[tokio::test]
    async fn limits_change_what_is_named_or_nothing() {
        let hands = hands();
        let limits = |threads, batch_max| hands.clone().perform(Command::Limits { threads, batch_max });
        assert_eq!(limits(None, Some(8)).await, Ok(json!({ "batch_max": 8 })));
        assert_eq!(limits(Some(1), None).await, Ok(json!({ "threads": 1, "batch_max": 8 })));
        assert!(limits(Some(2), Some(4)).await.unwrap_err().contains("2 threads"));
        assert_eq!(hands.helm.batch_max(), NonZeroU32::new(8));
        assert_eq!(limits(None, Some(0)).await, Ok(json!({ "batch_max": null })));
    }

    #[tokio::test]
    async fn pausing_is_answered_once_the_agent_has_left() {
        let hands = hands();
        assert_eq!(hands.clone().perform(Command::Pause).await, Ok(json!({ "paused": true })));
        assert!(hands.helm.follow().borrow().paused);
        assert_eq!(hands.clone().perform(Command::Resume).await, Ok(json!({ "paused": false })));
        assert!(!hands.helm.follow().borrow().paused);
    }

    #[tokio::test]
    async fn files_that_cannot_be_read_again_change_nothing() {
        let sources = Sources { token_file: Some("/no/such/file".into()), ..Sources::default() };
        let hands = Hands { sources: Some(sources), ..hands() };
        let error = hands.clone().perform(Command::Reload).await.unwrap_err();
        assert!(error.contains("/no/such/file"), "{error}");
        assert_eq!(hands.helm.follow().borrow().starts, 0);
        let found = Hands { sources: None, ..hands.clone() }.perform(Command::Reload).await.unwrap();
        assert_eq!((found["machine"]["cores"].as_u64(), hands.helm.follow().borrow().starts), (Some(3), 1));
    }
}
