//! SHA-256 digests as text, and secrets compared without a hint from timing.

use sha2::{Digest, Sha256};

/// SHA-256 of some bytes.
pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// As 64 hexadecimal digits.
pub(crate) fn to_hex(digest: &[u8; 32]) -> String {
    omnilearn_kernel_host::to_hex(digest)
}

/// From 64 hexadecimal digits.
pub(crate) fn from_hex(text: &str) -> Option<[u8; 32]> {
    omnilearn_kernel_host::from_hex(text).ok()
}

/// The token that agents and clients show. Never printed.
#[derive(Clone)]
pub struct Token([u8; 32]);

impl Token {
    /// A token, as read from a file or the environment; white space around it does not count.
    pub fn new(text: &str) -> Token {
        Token(sha256(text.trim().as_bytes()))
    }

    /// Whether `shown` is the token. Takes the same time whatever is wrong, since digests are compared and not the texts.
    pub(crate) fn accepts(&self, shown: &str) -> bool {
        let shown = sha256(shown.trim().as_bytes());
        self.0.iter().zip(shown).fold(0, |difference, (ours, theirs)| difference | (ours ^ theirs)) == 0
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Token(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_goes_both_ways_and_refuses_the_rest() {
        let digest = sha256(b"kernel");
        assert_eq!(from_hex(&to_hex(&digest)), Some(digest));
        for text in ["", "00", &to_hex(&digest)[1..], &"zz".repeat(32), &"00".repeat(33)] {
            assert_eq!(from_hex(text), None, "{text}");
        }
    }

    #[test]
    fn a_token_accepts_itself_only_and_is_not_printed() {
        let token = Token::new("secret\n");
        assert!(token.accepts("secret") && !token.accepts("secre") && !token.accepts(""));
        assert_eq!(format!("{token:?}"), "Token(hidden)");
    }
}
