//! Sizes that both ends enforce. A length from the wire is checked against these before anything is allocated from it.

/// Largest piece of a tensor stream in one message, in bytes. A multiple of every codec's element size.
pub const CHUNK_BYTES: usize = 1 << 20;

/// Largest message, in bytes: a chunk and its header, or any control message. A larger WebSocket message is answered
/// with close code 1009.
pub const FRAME_BYTES_MAX: usize = CHUNK_BYTES + (64 << 10);

/// Largest handshake message, in bytes.
pub const HANDSHAKE_BYTES_MAX: usize = 16 << 10;

/// Largest kernel component, in bytes.
pub const KERNEL_BYTES_MAX: u64 = 64 << 20;

/// Largest parameter or gradient stream, in bytes.
pub const STREAM_BYTES_MAX: u64 = 64 << 30;

/// Most elements of all parameters of a model together.
pub const ELEMENTS_MAX: u64 = STREAM_BYTES_MAX / 4;

/// Longest name (agent, job, dataset, setting, metric), in bytes.
pub const NAME_BYTES_MAX: usize = 256;

/// Longest explanation that travels in a message, in bytes. Longer ones are cut.
pub const REASON_BYTES_MAX: usize = 4096;

/// Most spans in one assignment. A hub that would need more gives less work.
pub const SPANS_MAX: usize = 1024;

/// Most metrics that a kernel may report.
pub const METRICS_MAX: usize = 32;

/// Most batch sizes that an agent times before it reports ready.
pub const CALIBRATION_MAX: usize = 64;

/// Most settings in a job offer.
pub const SETTINGS_MAX: usize = 128;

/// Most signatures of a kernel in a job offer.
pub const SIGNATURES_MAX: usize = 4;

/// Most numbers in a partition's table: classes times parts.
pub const PARTITION_TABLE_MAX: usize = 1 << 16;

/// Most parts of a partition.
pub const PARTS_MAX: u32 = 1 << 16;

/// Most parameters that a job may freeze, which its offer lists.
pub const FROZEN_MAX: usize = 1 << 16;

/// Cuts an explanation to [`REASON_BYTES_MAX`] at a character boundary.
pub fn cut_reason(mut reason: String) -> String {
    if reason.len() > REASON_BYTES_MAX {
        let end = (0..=REASON_BYTES_MAX).rev().find(|&end| reason.is_char_boundary(end)).unwrap_or(0);
        reason.truncate(end);
    }
    reason
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_reasons_are_cut_between_characters() {
        assert_eq!(cut_reason("short".to_owned()), "short");
        let long = cut_reason("ü".repeat(REASON_BYTES_MAX));
        assert_eq!(long.len(), REASON_BYTES_MAX);
        let odd = cut_reason(format!("x{}", "ü".repeat(REASON_BYTES_MAX)));
        assert_eq!(odd.len(), REASON_BYTES_MAX - 1);
    }
}
