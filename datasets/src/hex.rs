//! SHA-256 digests, and how they are written.

use std::io::{self, Read};

use serde::{Deserialize, Deserializer, Serializer, de::Error as _};
use sha2::{Digest, Sha256};

/// As 64 hexadecimal digits.
pub fn to_hex(digest: &[u8; 32]) -> String {
    use std::fmt::Write as _;
    digest.iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // writing to a string cannot fail
        text
    })
}

/// From 64 hexadecimal digits in lower case.
pub fn from_hex(text: &str) -> Option<[u8; 32]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != 32 || !rest.is_empty() {
        return None;
    }
    let mut digest = [0; 32];
    for (byte, &[high, low]) in digest.iter_mut().zip(pairs) {
        *byte = digit(high)? << 4 | digit(low)?;
    }
    Some(digest)
}

/// SHA-256 of everything that a reader gives, without holding it.
///
/// # Errors
/// What the reader meets.
pub fn digest_of(mut reader: impl Read) -> io::Result<[u8; 32]> {
    let mut hash = Sha256::new();
    let mut piece = vec![0; 256 << 10];
    loop {
        match reader.read(&mut piece) {
            Ok(0) => return Ok(hash.finalize().into()),
            Ok(read) => hash.update(&piece[..read]),
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) => return Err(cause),
        }
    }
}

pub(crate) fn serialize<S: Serializer>(digest: &[u8; 32], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&to_hex(digest))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[u8; 32], D::Error> {
    let text = String::deserialize(deserializer)?;
    from_hex(&text).ok_or_else(|| D::Error::custom("a SHA-256 has 64 hexadecimal digits in lower case"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_goes_both_ways_and_refuses_the_rest() {
        let digest = digest_of(&b"data"[..]).unwrap();
        assert_eq!(from_hex(&to_hex(&digest)), Some(digest));
        for text in ["", "00", &to_hex(&digest)[1..], &"zz".repeat(32), &"AA".repeat(32), &"00".repeat(33)] {
            assert_eq!(from_hex(text), None, "{text}");
        }
    }
}
