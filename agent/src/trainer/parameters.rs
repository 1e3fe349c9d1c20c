//! Parameters as they arrive: a stream of bytes in pieces of any size, decoded into one tensor after another.

use omnilearn_cpu::Buffer;
use omnilearn_wire::layout::TensorShape;
use omnilearn_wire::{Codec, Layout, Version};

use crate::engine::{Engine, Tensor};
use crate::session::ParameterPiece;

/// A piece that does not continue the stream.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PieceError {
    /// The stream has another length than the model.
    #[error("parameters of {found} bytes, but the model has {expected}")]
    Length {
        /// What the hub said.
        found: u64,
        /// What the layout says.
        expected: u64,
    },
    /// A gap, a repetition or a piece of another version.
    #[error("piece of version {version} at byte {offset}, expected {expected}")]
    Order {
        /// The piece's version.
        version: Version,
        /// The piece's offset.
        offset: u64,
        /// What should have come.
        expected: String,
    },
    /// More bytes than the stream has.
    #[error("piece of {bytes} bytes at byte {offset} reaches past the end of the parameters")]
    TooLong {
        /// Length of the piece.
        bytes: usize,
        /// The piece's offset.
        offset: u64,
    },
}

/// A complete set of parameters and shared buffers.
pub(super) struct Parameters {
    /// Which.
    pub(super) version: Version,
    /// In layout order.
    pub(super) parameters: Vec<Tensor>,
    /// In layout order.
    pub(super) buffers: Vec<Tensor>,
}

/// Decodes a parameter stream.
pub(super) struct ParameterStream {
    layout: Layout,
    codec: Codec,
    version: Version,
    /// Bytes taken so far.
    position: u64,
    /// The beginning of an element whose end is in the next piece.
    carry: Vec<u8>,
    /// Complete tensors, parameters first.
    done: Vec<Buffer>,
    /// The tensor that is arriving, and how many of its elements have.
    current: Option<Buffer>,
    arrived: usize,
}

impl ParameterStream {
    pub(super) fn new(layout: Layout, codec: Codec) -> ParameterStream {
        let empty = Vec::new();
        ParameterStream {
            layout,
            codec,
            version: Version(0),
            position: 0,
            carry: empty,
            done: Vec::new(),
            current: None,
            arrived: 0,
        }
    }

    /// Length of a stream.
    pub(super) fn bytes(&self) -> u64 {
        self.layout.stream_bytes(self.codec)
    }

    /// Takes the next piece; the parameters when it was the last.
    pub(super) fn take(
        &mut self,
        piece: ParameterPiece<'_>,
        engine: &Engine,
    ) -> Result<Option<Parameters>, PieceError> {
        let ParameterPiece { version, offset, total, bytes } = piece;
        let expected = self.bytes();
        if total != expected {
            return Err(PieceError::Length { found: total, expected });
        }
        if offset == 0 {
            self.version = version;
            self.position = 0;
            self.carry.clear();
            self.done.clear();
            self.current = None;
            self.arrived = 0;
        } else if offset != self.position || version != self.version {
            let expected = format!("version {} at byte {}", self.version, self.position);
            return Err(PieceError::Order { version, offset, expected });
        }
        if bytes.len() as u64 > expected - self.position {
            return Err(PieceError::TooLong { bytes: bytes.len(), offset });
        }
        self.position += bytes.len() as u64;
        self.decode(bytes);
        Ok((self.position == expected).then(|| self.finish(engine)))
    }

    /// The tensor of this index, and its codec.
    fn tensor(&self, index: usize) -> Option<(&TensorShape, Codec)> {
        let parameters = self.layout.parameters();
        match parameters.get(index) {
            Some(tensor) => Some((tensor, self.codec)),
            None => self.layout.buffers().get(index - parameters.len()).map(|tensor| (tensor, Codec::F32)),
        }
    }

    fn decode(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (tensor, codec) = self.tensor(self.done.len()).expect("no more bytes are taken than the stream has");
            let size = elements(tensor);
            let element_bytes = codec.element_bytes();
            if !self.carry.is_empty() || bytes.len() < element_bytes {
                let (head, rest) = bytes.split_at((element_bytes - self.carry.len()).min(bytes.len()));
                self.carry.extend_from_slice(head);
                bytes = rest;
                if self.carry.len() == element_bytes {
                    let carry = std::mem::take(&mut self.carry);
                    self.append(codec, &carry, size);
                }
            } else {
                let whole = (bytes.len() / element_bytes).min(size - self.arrived);
                let (head, rest) = bytes.split_at(whole * element_bytes);
                self.append(codec, head, size);
                bytes = rest;
            }
            if self.arrived == size {
                self.done.extend(self.current.take());
                self.arrived = 0;
            }
        }
    }

    /// Decodes whole elements of a tensor that has `size` of them.
    fn append(&mut self, codec: Codec, bytes: &[u8], size: usize) {
        let end = self.arrived + bytes.len() / codec.element_bytes();
        let current = self.current.get_or_insert_with(|| Buffer::new(size));
        codec.decode_into(bytes, &mut current[self.arrived..end]).expect("the pieces hold whole elements");
        self.arrived = end;
    }

    fn finish(&mut self, engine: &Engine) -> Parameters {
        let shapes = self.layout.parameters().iter().chain(self.layout.buffers());
        let mut tensors: Vec<Tensor> = std::mem::take(&mut self.done)
            .into_iter()
            .zip(shapes)
            .map(|(values, tensor)| engine.stored(values, &shape(tensor)))
            .collect();
        let buffers = tensors.split_off(self.layout.parameters().len());
        // Whatever follows begins a new stream.
        Parameters { version: self.version, parameters: tensors, buffers }
    }
}

/// Number of elements of a tensor of a checked layout.
pub(super) fn elements(tensor: &TensorShape) -> usize {
    tensor.shape.iter().map(|&size| size as usize).product()
}

/// A scalar is `[1]` here.
pub(super) fn shape(tensor: &TensorShape) -> Vec<usize> {
    if tensor.shape.is_empty() { vec![1] } else { tensor.shape.iter().map(|&size| size as usize).collect() }
}
