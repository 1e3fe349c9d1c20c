//! Tensors that a kernel holds by number.

use wasmtime::component::Resource;

use crate::backend::DType;
use crate::bindings::Handle;
use crate::limits::{Limit, Limits};

/// Most dimensions of a tensor.
pub(crate) const RANK_MAX: usize = 6;

/// Dimensions, kept inline so that looking at a handle allocates nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    dimensions: [usize; RANK_MAX],
    rank: u8,
}

impl Shape {
    /// `None` if there are more than [`RANK_MAX`].
    pub(crate) fn new(dimensions: &[usize]) -> Option<Shape> {
        let mut inline = [1; RANK_MAX];
        inline.get_mut(..dimensions.len())?.copy_from_slice(dimensions);
        Some(Shape { dimensions: inline, rank: dimensions.len() as u8 })
    }
}

impl std::ops::Deref for Shape {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.dimensions[..usize::from(self.rank)]
    }
}

impl std::fmt::Debug for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(f)
    }
}

/// A tensor with what the host itself needs to know of it.
pub(crate) struct Held<T> {
    pub(crate) tensor: T,
    pub(crate) shape: Shape,
    pub(crate) dtype: DType,
}

impl<T> Held<T> {
    /// As errors name it: `f32 [64, 1, 28, 28]`.
    pub(crate) fn name(&self) -> String {
        let dtype = match self.dtype {
            DType::F32 => "f32",
            DType::I32 => "i32",
        };
        format!("{dtype} {:?}", self.shape)
    }

    fn bytes(&self) -> u64 {
        self.shape.iter().fold(4, |bytes, &dimension| bytes.saturating_mul(dimension as u64))
    }
}

enum Slot<T> {
    Free,
    Live(Held<T>),
    /// The kernel kept the handle past the call that it belonged to. The tensor is gone; the number is not given out
    /// again while the kernel could still use it.
    Expired,
}

/// A handle that refers to no tensor of this call.
#[derive(Debug, thiserror::Error)]
#[error("the kernel used a tensor handle of an earlier call")]
pub(crate) struct ExpiredHandle;

/// All tensors of one instance, with their bytes counted.
pub(crate) struct Handles<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    bytes: u64,
    /// The most that `bytes` has been.
    bytes_peak: u64,
    bytes_max: u64,
    count_max: u32,
    /// Whether dropped tensors still count, because differentiation may keep them.
    retaining: bool,
}

impl<T> Handles<T> {
    pub(crate) fn new(limits: &Limits) -> Handles<T> {
        let Limits { tensor_bytes, handles, .. } = *limits;
        Handles {
            slots: Vec::new(),
            free: Vec::new(),
            bytes: 0,
            bytes_peak: 0,
            bytes_max: tensor_bytes,
            count_max: handles,
            retaining: false,
        }
    }

    /// The most bytes that a call has held.
    pub(crate) fn bytes_peak(&self) -> u64 {
        self.bytes_peak
    }

    /// Begins a call.
    pub(crate) fn begin(&mut self, retaining: bool) {
        self.retaining = retaining;
    }

    /// Ends a call: every tensor that is still here goes, and its handle is void.
    pub(crate) fn end(&mut self) {
        for slot in &mut self.slots {
            if matches!(slot, Slot::Live(_)) {
                *slot = Slot::Expired;
            }
        }
        self.bytes = 0;
        self.retaining = false;
    }

    /// Whether a tensor of so many elements would still fit.
    pub(crate) fn check_room(&self, operation: &'static str, elements: u64) -> Result<(), Limit> {
        self.check_bytes(operation, elements.saturating_mul(4)).map(|_| ())
    }

    fn check_bytes(&self, operation: &'static str, bytes: u64) -> Result<u64, Limit> {
        let wanted = self.bytes.saturating_add(bytes);
        if wanted > self.bytes_max {
            Err(Limit::TensorBytes { operation, wanted, max: self.bytes_max })
        } else {
            Ok(wanted)
        }
    }

    pub(crate) fn insert(&mut self, operation: &'static str, held: Held<T>) -> Result<Resource<Handle>, Limit> {
        let bytes = self.check_bytes(operation, held.bytes())?;
        let number = match self.free.pop() {
            Some(number) => number,
            None if self.slots.len() < self.count_max as usize => {
                self.slots.push(Slot::Free);
                (self.slots.len() - 1) as u32
            }
            None => return Err(Limit::Handles { max: self.count_max }),
        };
        self.bytes = bytes;
        self.bytes_peak = self.bytes_peak.max(bytes);
        self.slots[number as usize] = Slot::Live(held);
        Ok(Resource::new_own(number))
    }

    pub(crate) fn get(&self, handle: &Resource<Handle>) -> Result<&Held<T>, ExpiredHandle> {
        match self.slots.get(handle.rep() as usize) {
            Some(Slot::Live(held)) => Ok(held),
            _ => Err(ExpiredHandle),
        }
    }

    /// Ends a handle; its tensor, if it has one in this call.
    pub(crate) fn remove(&mut self, handle: &Resource<Handle>) -> Option<Held<T>> {
        let slot = self.slots.get_mut(handle.rep() as usize)?;
        match std::mem::replace(slot, Slot::Free) {
            Slot::Free => None,
            Slot::Expired => {
                self.free.push(handle.rep());
                None
            }
            Slot::Live(held) => {
                self.free.push(handle.rep());
                if !self.retaining {
                    self.bytes -= held.bytes();
                }
                Some(held)
            }
        }
    }
}
