//! Sends what was recorded to the broker, a batch at a time.

use std::convert::Infallible;
use std::time::Duration;

use omnilearn_mqtt::client::{Client, ClientState, Message, PublishError};
use omnilearn_mqtt::session::SessionMark;
use tracing::debug;

use crate::session::recorder::Recorder;

/// What a packet has besides topic and payload, at most.
const HEADER_BYTES: usize = 16;

/// Where timings go.
pub(super) struct Sender<'a> {
    pub(super) client: &'a Client,
    pub(super) topic: String,
    pub(super) recorder: &'a Recorder,
    /// The mark that the client's connections are counted from.
    pub(super) base: SessionMark,
}

impl Sender<'_> {
    /// Sends at most one batch in `every`, for ever.
    pub(super) async fn send(&self, every: Duration) -> Infallible {
        loop {
            self.recorder.filled().await;
            if let Err(error) = self.send_batch().await {
                debug!(%error, "timings are kept and sent again");
            }
            tokio::time::sleep(every).await;
        }
    }

    /// Sends what there is before the end.
    pub(super) async fn finish(&self) {
        while !self.recorder.is_empty() && self.send_batch().await.is_ok() {}
    }

    /// Sends one batch, once there is a connection, and waits for its acknowledgement.
    async fn send_batch(&self) -> Result<(), PublishError> {
        let mut state = self.client.state();
        let connected = state.wait_for(|state| matches!(state, ClientState::Connected { .. })).await;
        let (connection, packet_bytes_max) = match connected.as_deref() {
            Ok(&ClientState::Connected { connection, packet_bytes_max }) => (connection, packet_bytes_max),
            _ => return Err(PublishError::Disconnected),
        };
        drop(connected);
        let session = self.base.with_epoch(self.base.epoch + connection);
        let bytes_max = packet_bytes_max.saturating_sub(HEADER_BYTES + self.topic.len());
        let Some(payload) = self.recorder.next_batch(session, bytes_max) else { return Ok(()) };
        let message = Message { topic: self.topic.clone(), payload: payload.into(), retain: false };
        self.client.publish_acknowledged(message).await?;
        self.recorder.acknowledged();
        Ok(())
    }
}
