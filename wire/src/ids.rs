//! Names of things on the wire.

use std::fmt;
use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(formatter)
            }
        }
    };
}

id! {
    /// One agent of one hub, stable over reconnects.
    AgentId(u32)
}
id! {
    /// One training job of one hub.
    JobId(u64)
}
id! {
    /// One piece of work given to one agent; never used twice within a job, so that a repeated push is recognised.
    AssignmentId(u64)
}
id! {
    /// How many optimizer steps the hub has applied, which names a set of parameters.
    Version(u64)
}

/// A number of samples, at least one.
pub type Samples = NonZeroU32;

impl Version {
    /// Staleness of a gradient computed from `self` when the hub is at `now`, in steps.
    pub fn staleness_at(self, now: Version) -> u64 {
        now.0.saturating_sub(self.0)
    }

    /// The version after one more optimizer step.
    pub fn next(self) -> Version {
        Version(self.0 + 1)
    }
}
