//! The model's values, shared without copying.

use std::sync::Arc;

use omnilearn_wire::Version;

/// Most elements of one block of parameters (1 MiB).
pub const BLOCK_ELEMENTS: usize = 262_144;

/// The parameters and shared buffers of one version. Cloning it copies nothing; a later step copies only those blocks that a
/// snapshot still holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// Which version.
    pub version: Version,
    /// All parameters in stream order, cut into blocks of [`BLOCK_ELEMENTS`]; only the last may be shorter.
    pub parameters: Vec<Arc<[f32]>>,
    /// All shared buffers in stream order.
    pub buffers: Arc<[f32]>,
}

impl Snapshot {
    pub(crate) fn new(parameters: &[f32], buffers: &[f32]) -> Snapshot {
        Snapshot {
            version: Version(0),
            parameters: parameters.chunks(BLOCK_ELEMENTS).map(Arc::from).collect(),
            buffers: Arc::from(buffers),
        }
    }
}
