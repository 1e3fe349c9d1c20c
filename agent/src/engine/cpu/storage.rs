//! Between Burn's tensors and the buffers of `omnilearn-cpu`.
#![expect(unsafe_code, reason = "Burn takes foreign storage by an unsafe interface")]

use std::mem::MaybeUninit;

use burn::tensor::{Bytes, DType, Shape};
use burn_flex::{FlexTensor, Layout as Strides};
use burn_std::{AccessError, AccessPolicy, AllocationController, AllocationProperty};
use omnilearn_cpu::Buffer;

/// A new tensor. Its storage goes back to the pool of buffers when the last tensor that shares it is dropped.
pub(crate) fn tensor(values: Buffer, shape: &[usize]) -> FlexTensor {
    debug_assert_eq!(values.len(), shape.iter().product::<usize>(), "as many values as the shape says");
    let length = values.len() * size_of::<f32>();
    // SAFETY: the controller has `length` bytes, and all of them are initialised.
    let bytes = unsafe { Bytes::from_controller(Box::new(Storage(values)), length) };
    FlexTensor::new(bytes, Strides::contiguous(Shape::from(shape.to_vec())), DType::F32)
}

/// A buffer as Burn wants it.
struct Storage(Buffer);

impl AllocationController for Storage {
    fn alloc_align(&self) -> usize {
        align_of::<f32>()
    }

    fn property(&self) -> AllocationProperty {
        AllocationProperty::Other
    }

    unsafe fn memory_mut(&mut self, _policy: AccessPolicy) -> Result<&mut [MaybeUninit<u8>], AccessError> {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.0);
        // SAFETY: of equal layout, and the caller writes initialised bytes only.
        Ok(unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len()) })
    }

    fn memory(&self, _policy: AccessPolicy) -> Result<&[MaybeUninit<u8>], AccessError> {
        let bytes: &[u8] = bytemuck::cast_slice(&self.0);
        // SAFETY: of equal layout.
        Ok(unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len()) })
    }
}

/// The elements of a tensor that is contiguous and covers its storage.
pub(super) fn values(tensor: &FlexTensor) -> &[f32] {
    tensor.storage()
}

/// The elements, or nothing if there are none.
pub(super) fn optional(tensor: &FlexTensor) -> Option<&[f32]> {
    Some(values(tensor)).filter(|values| !values.is_empty())
}

/// Dimensions.
pub(super) fn sizes(tensor: &FlexTensor) -> &[usize] {
    tensor.layout().shape().as_slice()
}
