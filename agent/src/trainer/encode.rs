//! An update as the bytes that are pushed: every gradient in the job's codec, then every shared buffer in `f32`.

use std::ops::ControlFlow;

use omnilearn_kernel_host::Merge;
use omnilearn_wire::Codec;
use omnilearn_wire::limits::CHUNK_BYTES;
use omnilearn_wire::message::Failure;

use super::{Gradient, Trainer, failed};
use crate::session::ComputeError;

impl Trainer {
    /// Encodes a gradient, once, from the tensors' storage.
    pub(super) fn encode(
        &mut self,
        gradient: &Gradient,
        sink: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<(), ComputeError> {
        let mut chunk = std::mem::take(&mut self.chunk);
        chunk.clear();
        let mut writer = StreamWriter { chunk: &mut chunk, sink, unwanted: false };
        let result = self.write(gradient, &mut writer);
        writer.flush();
        self.chunk = chunk;
        result
    }

    fn write(&self, gradient: &Gradient, writer: &mut StreamWriter<'_>) -> Result<(), ComputeError> {
        for (parameter, gradient) in self.split.trained().parameters().iter().zip(&gradient.gradients) {
            match gradient {
                Some(gradient) => gradient.with_floats(|values| {
                    check_finite(values, || format!("the gradient of `{}`", parameter.name))?;
                    writer.write(self.codec, values);
                    Ok(())
                })?,
                None => {
                    let elements = parameter.shape.iter().map(|&size| size as usize).product();
                    writer.write(self.codec, &vec![0.0; elements]);
                }
            }
        }
        for (info, buffer) in self.description.buffers.iter().zip(&gradient.buffers) {
            if info.merge == Merge::MeanBySamples {
                buffer.with_floats(|values| {
                    check_finite(values, || format!("the new value of `{}`", info.name))?;
                    writer.write(Codec::F32, values);
                    Ok(())
                })?;
            }
        }
        Ok(())
    }
}

/// Cuts a stream into chunks.
struct StreamWriter<'a> {
    chunk: &'a mut Vec<u8>,
    sink: &'a mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    unwanted: bool,
}

impl StreamWriter<'_> {
    fn write(&mut self, codec: Codec, mut values: &[f32]) {
        while !values.is_empty() && !self.unwanted {
            let room = (CHUNK_BYTES - self.chunk.len()) / codec.element_bytes();
            if room == 0 {
                self.flush();
                continue;
            }
            let (head, rest) = values.split_at(values.len().min(room));
            codec.encode_into(head, self.chunk);
            values = rest;
        }
    }

    fn flush(&mut self) {
        if !self.chunk.is_empty() && !self.unwanted {
            self.unwanted = (self.sink)(self.chunk).is_break();
        }
        self.chunk.clear();
    }
}

/// Fails at the first value that is infinite or not a number.
fn check_finite(values: &[f32], what: impl FnOnce() -> String) -> Result<(), ComputeError> {
    // The largest exponent decides: one pass that the compiler makes wide.
    let largest = values.iter().fold(0, |largest, value| largest.max(value.to_bits() & 0x7FFF_FFFF));
    if f32::from_bits(largest).is_finite() {
        return Ok(());
    }
    let index = values.iter().position(|value| !value.is_finite()).unwrap_or_default();
    Err(failed(Failure::NotFinite, format!("{} is {} at index {index}", what(), values[index])))
}
