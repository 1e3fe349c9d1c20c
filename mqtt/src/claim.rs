//! One name, one agent: who finds another under its name does not begin.

use crate::options::Options;
use crate::topics::Topics;

/// Why an agent may not use its name.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// Another process answers to it.
    #[error(
        "another agent is online as `{name}` (process {process:016x}); give this one another --name or stop the other"
    )]
    Taken {
        /// The name.
        name: String,
        /// The other process.
        process: u64,
    },
}

/// Finds out whether another process is online as `name`, which takes one second, or three where the broker's retained presence
/// says so. Waits for the broker. Returns the highest epoch that was seen, to count on from.
///
/// # Errors
/// [`ClaimError::Taken`].
pub async fn claim(_options: &Options, _topics: &Topics, _name: &str, _process: u64) -> Result<u64, ClaimError> {
    todo!()
}
