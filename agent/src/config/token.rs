//! The secret that a hub and its agents share.

use std::fmt;

/// A shared secret. Never shown by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

/// Why a text is not a token.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Nothing but white space.
    #[error("the token is empty")]
    Empty,
    /// Longer than a handshake allows.
    #[error("the token has {bytes} bytes, at most {TOKEN_BYTES_MAX} allowed")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
}

/// Longest token, in bytes.
pub const TOKEN_BYTES_MAX: usize = 4096;

impl Token {
    /// Takes a token without the white space around it.
    ///
    /// # Errors
    /// [`TokenError`] if nothing is left or too much.
    pub fn new(text: &str) -> Result<Token, TokenError> {
        let text = text.trim();
        match text.len() {
            0 => Err(TokenError::Empty),
            1..=TOKEN_BYTES_MAX => Ok(Token(text.to_owned())),
            bytes => Err(TokenError::TooLong { bytes }),
        }
    }

    /// The secret.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Token(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_trimmed_and_hidden() {
        let token = Token::new(" secret\n").unwrap();
        assert_eq!(token.reveal(), "secret");
        assert!(!format!("{token:?}").contains("secret"));
        assert_eq!(Token::new(" \n"), Err(TokenError::Empty));
    }
}
