//! Values of parameters that are not trained: fetched once, read into tensors once.

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use omnilearn_cpu::Buffer;
use omnilearn_kernel_host::Kernel;
use omnilearn_wire::layout::TensorShape;
use omnilearn_wire::message::JobOffer;
use omnilearn_wire::{Codec, Layout};

use super::parameters::{elements, shape};
use crate::dataset::Dataset;
use crate::dataset::cache::{DataCache, Held};
use crate::dataset::fetch::{self, HubFiles};
use crate::engine::{Engine, Tensor};

/// The files that a job reads.
#[derive(Clone)]
pub struct JobFiles {
    /// What it learns from.
    pub dataset: Dataset,
    /// Values of its frozen parameters, if it has any.
    pub frozen: Option<FrozenFile>,
}

/// Values of frozen parameters on disk, in the encoding of [`Frozen`](omnilearn_wire::frozen::Frozen).
#[derive(Clone, Debug)]
pub struct FrozenFile(Arc<Held>);

impl FrozenFile {
    /// Values that lie in a file.
    pub fn new(held: Held) -> FrozenFile {
        FrozenFile(Arc::new(held))
    }

    /// The values of an offer's frozen parameters, from the cache or from the hub. Their length is compared with what the kernel
    /// says before anything is fetched.
    ///
    /// # Errors
    /// Why they cannot be had, for the hub's operator.
    pub(super) fn fetch(
        offer: &JobOffer,
        kernel: &Kernel,
        cache: &DataCache,
        hub: &mut dyn HubFiles,
    ) -> Result<Option<FrozenFile>, String> {
        let Some(frozen) = &offer.frozen else { return Ok(None) };
        let description = kernel.describe(&offer.settings).map_err(|error| error.to_string())?;
        let layout = description.layout().map_err(|error| error.to_string())?;
        let expected = super::split(offer, layout)?.frozen_bytes();
        if frozen.bytes != expected {
            return Err(format!("frozen parameters of {} bytes, but the kernel's have {expected}", frozen.bytes));
        }
        fetch::file("the frozen parameters", &frozen.digest, frozen.bytes, cache, hub).map(FrozenFile::new).map(Some)
    }

    /// Reads one tensor after the other.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn tensors(&self, layout: &Layout, engine: &Engine) -> Result<Vec<Tensor>, String> {
        let Held { file, path } = &*self.0;
        let (mut bytes, mut offset) = (Vec::new(), 0);
        let read = |tensor: &TensorShape| -> Result<Tensor, String> {
            let mut values = Buffer::new(elements(tensor));
            bytes.resize(values.len() * Codec::F32.element_bytes(), 0);
            file.read_exact_at(&mut bytes, offset)
                .map_err(|cause| format!("cannot read frozen parameters from {}: {cause}", path.display()))?;
            offset += bytes.len() as u64;
            Codec::F32.decode_into(&bytes, &mut values).expect("there are four bytes for each element");
            Ok(engine.stored(values, &shape(tensor)))
        };
        layout.parameters().iter().map(read).collect()
    }
}
