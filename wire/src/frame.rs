//! One message, one frame: postcard with the length checked on both sides.

use serde::{Deserialize, Serialize};

use crate::limits::{CHUNK_BYTES, FRAME_BYTES_MAX};
use crate::message::{AgentMessage, HubMessage};

/// Why a frame was not understood. The connection is closed with this text.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The frame is longer than both ends agreed on.
    #[error("frame of {bytes} bytes, at most {FRAME_BYTES_MAX} allowed")]
    TooLong {
        /// Length of the frame.
        bytes: usize,
    },
    /// The frame is not a message of this protocol.
    #[error("frame of {bytes} bytes is not a message: {cause}")]
    Malformed {
        /// Length of the frame.
        bytes: usize,
        /// What postcard found.
        cause: postcard::Error,
    },
    /// Bytes are left over after the message.
    #[error("frame has {bytes} bytes after its message")]
    TrailingBytes {
        /// How many.
        bytes: usize,
    },
    /// A chunk is longer than allowed.
    #[error("chunk of {bytes} bytes, at most {CHUNK_BYTES} allowed")]
    ChunkTooLong {
        /// Length of the chunk.
        bytes: usize,
    },
}

/// A message that can be framed.
pub trait Message<'a>: Serialize + Deserialize<'a> {
    /// The piece of a stream that the message carries.
    fn chunk(&self) -> Option<&[u8]>;
}

impl<'a> Message<'a> for AgentMessage<'a> {
    fn chunk(&self) -> Option<&[u8]> {
        match self {
            AgentMessage::PushChunk { bytes, .. } => Some(bytes),
            _ => None,
        }
    }
}

impl<'a> Message<'a> for HubMessage<'a> {
    fn chunk(&self) -> Option<&[u8]> {
        match self {
            HubMessage::KernelChunk { bytes, .. } | HubMessage::ParameterChunk { bytes, .. } => Some(bytes),
            _ => None,
        }
    }
}

/// Encodes one message.
///
/// # Errors
/// [`FrameError::TooLong`] or [`FrameError::ChunkTooLong`] if the peer would refuse it.
pub fn encode<'a>(message: &impl Message<'a>) -> Result<Vec<u8>, FrameError> {
    let chunk_bytes = message.chunk().map_or(0, <[u8]>::len);
    if chunk_bytes > CHUNK_BYTES {
        return Err(FrameError::ChunkTooLong { bytes: chunk_bytes });
    }
    let buffer = Vec::with_capacity(chunk_bytes + 128);
    let frame = postcard::to_extend(message, buffer).map_err(|cause| FrameError::Malformed { bytes: 0, cause })?;
    if frame.len() > FRAME_BYTES_MAX {
        return Err(FrameError::TooLong { bytes: frame.len() });
    }
    Ok(frame)
}

/// Decodes one message, which borrows its chunk from the frame.
///
/// # Errors
/// [`FrameError`]; nothing larger than the frame is allocated.
pub fn decode<'a, M: Message<'a>>(frame: &'a [u8]) -> Result<M, FrameError> {
    if frame.len() > FRAME_BYTES_MAX {
        return Err(FrameError::TooLong { bytes: frame.len() });
    }
    let (message, rest) =
        postcard::take_from_bytes::<M>(frame).map_err(|cause| FrameError::Malformed { bytes: frame.len(), cause })?;
    if !rest.is_empty() {
        return Err(FrameError::TrailingBytes { bytes: rest.len() });
    }
    let chunk_bytes = message.chunk().map_or(0, <[u8]>::len);
    if chunk_bytes > CHUNK_BYTES {
        return Err(FrameError::ChunkTooLong { bytes: chunk_bytes });
    }
    Ok(message)
}
