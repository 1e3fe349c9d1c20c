//! Bytes as hexadecimal digits, written in lower case and read in either.

use super::TextError;

/// Two digits a byte.
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// So many bytes from twice as many digits.
///
/// # Errors
/// [`TextError`] for another number of digits, or what is no digit.
pub fn from_hex<const BYTES: usize>(text: &str) -> Result<[u8; BYTES], TextError> {
    let mut digits = [0; BYTES];
    let found = text.chars().count();
    if found != 2 * BYTES {
        return Err(TextError::Length { expected: 2 * BYTES, found });
    }
    for (index, character) in text.chars().enumerate() {
        let digit = character.to_digit(16).ok_or(TextError::Digit { position: index + 1 })?;
        digits[index / 2] = digits[index / 2] << 4 | digit as u8;
    }
    Ok(digits)
}
