//! One version's parameters on their way to agents, as frames.

use std::sync::OnceLock;

use bytes::Bytes;
use omnilearn_hub_core::Snapshot;
use omnilearn_wire::message::HubMessage;
use omnilearn_wire::{Codec, JobId, Layout, Version, frame};

use crate::limits::SHARED_STREAM_BYTES_MAX;

/// Length of a chunk. Shorter than allowed, since each connection holds a few while it sends.
const CHUNK_BYTES: usize = 256 << 10;

/// A snapshot that is encoded chunk by chunk while it is sent, or, when small, once for all agents.
#[derive(Debug)]
pub(crate) struct ParameterStream {
    job: JobId,
    codec: Codec,
    snapshot: Snapshot,
    parameter_bytes: u64,
    total_bytes: u64,
    shared: Option<OnceLock<Vec<Bytes>>>,
}

impl ParameterStream {
    pub(crate) fn new(job: JobId, codec: Codec, layout: &Layout, snapshot: Snapshot) -> ParameterStream {
        let total_bytes = layout.stream_bytes(codec);
        ParameterStream {
            job,
            codec,
            snapshot,
            parameter_bytes: layout.parameter_bytes(codec),
            total_bytes,
            shared: (total_bytes <= SHARED_STREAM_BYTES_MAX).then(OnceLock::new),
        }
    }

    pub(crate) fn version(&self) -> Version {
        self.snapshot.version
    }

    /// Number of frames. No frame holds both parameters and buffers, so that none ends inside an element.
    pub(crate) fn frames(&self) -> usize {
        self.parameter_frames() + chunks(self.total_bytes - self.parameter_bytes)
    }

    fn parameter_frames(&self) -> usize {
        chunks(self.parameter_bytes)
    }

    /// Frame `index` of [`ParameterStream::frames`].
    pub(crate) fn frame(&self, index: usize) -> Bytes {
        match &self.shared {
            Some(shared) => {
                let frames = shared.get_or_init(|| (0..self.frames()).map(|index| self.encode(index)).collect());
                frames[index].clone()
            }
            None => self.encode(index),
        }
    }

    fn encode(&self, index: usize) -> Bytes {
        let parameters = self.snapshot.parameters.iter().map(|block| &block[..]);
        let (section_start, (start, bytes)) = match index.checked_sub(self.parameter_frames()) {
            None => (0, piece(self.codec, parameters, self.parameter_bytes, index)),
            Some(index) => {
                let buffer_bytes = self.total_bytes - self.parameter_bytes;
                let buffers = std::iter::once(&self.snapshot.buffers[..]);
                (self.parameter_bytes, piece(Codec::F32, buffers, buffer_bytes, index))
            }
        };
        let message = HubMessage::ParameterChunk {
            job: self.job,
            version: self.snapshot.version,
            offset: section_start + start,
            total: self.total_bytes,
            bytes: &bytes,
        };
        frame::encode(&message).expect("a chunk and its header fit a frame").into()
    }
}

fn chunks(bytes: u64) -> usize {
    bytes.div_ceil(CHUNK_BYTES as u64) as usize
}

/// Chunk `index` of the encoding of `blocks`, which is `total_bytes` long: where it begins, and its bytes.
fn piece<'a>(codec: Codec, blocks: impl Iterator<Item = &'a [f32]>, total_bytes: u64, index: usize) -> (u64, Vec<u8>) {
    let start = index as u64 * CHUNK_BYTES as u64;
    let end = (start + CHUNK_BYTES as u64).min(total_bytes);
    let element_bytes = codec.element_bytes() as u64;
    let mut bytes = Vec::with_capacity((end - start) as usize);
    let mut block_start = 0;
    for block in blocks {
        let block_end = block_start + block.len() as u64 * element_bytes;
        if block_end > start && block_start < end {
            let first = (start.max(block_start) - block_start) / element_bytes;
            let last = (end.min(block_end) - block_start) / element_bytes;
            codec.encode_into(&block[first as usize..last as usize], &mut bytes);
        }
        block_start = block_end;
    }
    (start, bytes)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use omnilearn_wire::layout::TensorShape;

    use super::*;

    fn stream(elements: usize, buffers: usize, codec: Codec) -> (ParameterStream, Vec<f32>, Vec<f32>) {
        let parameters: Vec<f32> = (0..elements).map(|index| index as f32).collect();
        let buffer_values: Vec<f32> = (0..buffers).map(|index| -(index as f32)).collect();
        let tensor = |name: &str, count: usize| TensorShape { name: name.into(), shape: vec![count as u32] };
        let layout = Layout::new(vec![tensor("w", elements)], vec![tensor("b", buffers)]).unwrap();
        let snapshot = Snapshot {
            version: Version(3),
            parameters: parameters.chunks(262_144).map(Arc::from).collect(),
            buffers: Arc::from(&buffer_values[..]),
        };
        (ParameterStream::new(JobId(1), codec, &layout, snapshot), parameters, buffer_values)
    }

    fn join(stream: &ParameterStream) -> Vec<u8> {
        let mut joined = Vec::new();
        for index in 0..stream.frames() {
            let bytes = stream.frame(index);
            let HubMessage::ParameterChunk { offset, total, version, bytes, .. } = frame::decode(&bytes).unwrap()
            else {
                panic!("not a chunk");
            };
            assert_eq!((offset, total, version), (joined.len() as u64, stream.total_bytes, Version(3)));
            joined.extend_from_slice(bytes);
        }
        joined
    }

    #[test]
    fn frames_join_to_parameters_then_buffers() {
        for codec in [Codec::F32, Codec::Bf16] {
            for (elements, buffers) in [(10, 3), (262_144, 1), (700_001, 300_000), (2_000_000, 7)] {
                let (stream, parameters, buffer_values) = stream(elements, buffers, codec);
                let mut expected = Vec::new();
                codec.encode_into(&parameters, &mut expected);
                Codec::F32.encode_into(&buffer_values, &mut expected);
                assert!(join(&stream) == expected, "{codec:?} {elements} {buffers}");
            }
        }
    }

    #[test]
    fn a_small_stream_is_encoded_once() {
        let (stream, ..) = stream(10, 3, Codec::F32);
        assert_eq!(stream.frame(0).as_ptr(), stream.frame(0).as_ptr());
    }
}
