//! What the hub says of the timings that it has.

use serde::{Deserialize, Serialize};

use crate::session::{from_hex, hex};

/// Largest receipt, in bytes. Fields that a later version may add have room.
const RECEIPT_BYTES_MAX: usize = 1 << 10;

/// Up to where the hub has taken a process's timings, as JSON on [`agent_received`](crate::topics::Topics::agent_received), not
/// retained: `{"process":"9f86d081884c7d65","next":120}`. The broker's acknowledgement does not say that: a broker that ends, or a
/// hub that does, takes along what it had accepted.
///
/// The hub sends one for each batch, also for one that brought nothing new: the receipt before may have been lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimingsReceipt {
    /// The process, as in the batch's [`SessionMark`](crate::session::SessionMark).
    #[serde(serialize_with = "hex", deserialize_with = "from_hex")]
    pub process: u64,
    /// Every step with a lower number is taken, or known to be lost.
    pub next: u64,
}

/// Why a payload is no receipt.
#[derive(Debug, thiserror::Error)]
pub enum ReceiptError {
    /// Longer than any receipt.
    #[error("{bytes} bytes, at most {RECEIPT_BYTES_MAX} allowed")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// Not this JSON.
    #[error("not a receipt's JSON")]
    Json(#[source] serde_json::Error),
}

impl TimingsReceipt {
    /// As JSON.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a receipt has string keys only")
    }

    /// Reads a receipt.
    ///
    /// # Errors
    /// [`ReceiptError`].
    pub fn decode(payload: &[u8]) -> Result<TimingsReceipt, ReceiptError> {
        if payload.len() > RECEIPT_BYTES_MAX {
            return Err(ReceiptError::TooLong { bytes: payload.len() });
        }
        serde_json::from_slice(payload).map_err(ReceiptError::Json)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receipt_is_the_json_that_is_documented() {
        let receipt = TimingsReceipt { process: 0x2a, next: 120 };
        let expected = r#"{"process":"000000000000002a","next":120}"#;
        assert_eq!(String::from_utf8(receipt.encode()).unwrap(), expected);
        assert_eq!(TimingsReceipt::decode(expected.as_bytes()).unwrap(), receipt);
    }

    #[test]
    fn what_no_hub_sends_is_refused() {
        for payload in ["", "{}", r#"{"process":"2a","next":1}"#, r#"{"process":"000000000000002a","next":-1}"#] {
            assert!(matches!(TimingsReceipt::decode(payload.as_bytes()), Err(ReceiptError::Json(_))), "{payload}");
        }
        assert!(matches!(TimingsReceipt::decode(&[b' '; 2000]), Err(ReceiptError::TooLong { bytes: 2000 })));
    }
}
