//! Who stands behind a kernel: Ed25519 signatures, which are checked before anything of a component is parsed.
//!
//! What is signed is `omnilearn kernel 1`, a zero byte and the component's SHA-256. So a key that is also used elsewhere
//! never signs a kernel by accident, and a signature can be judged before the first byte of its component has come.

mod hex;

#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;

use ed25519_dalek::{Signer, SigningKey, VerifyingKey};
use omnilearn_wire::message::KernelSignature;

pub use self::hex::{from_hex, to_hex};

/// Stands before the digest in what is signed.
const DOMAIN: &[u8; 19] = b"omnilearn kernel 1\0";

/// Begins the text of a secret key, so that nobody takes it for a public one, which has as many digits.
const SECRET_MARK: &str = "omnilearn-secret-key-1:";

/// Why a text is no key or no signature. No message quotes the text, which may be a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// Too short or too long.
    #[error("{found} characters, expected {expected} hexadecimal digits")]
    Length {
        /// Digits that are expected.
        expected: usize,
        /// Characters that were found.
        found: usize,
    },
    /// Something other than `0` to `9` and `a` to `f`.
    #[error("character {position} is no hexadecimal digit")]
    Digit {
        /// Which one, from 1.
        position: usize,
    },
    /// Digits that no public key has, so one of them must be wrong.
    #[error("no public key has these digits; one of them must be wrong")]
    NotPublic,
    /// The wrong half of a key pair.
    #[error(
        "this is a secret key, which stays where it was made; `omnilearn-hub key show` prints the public key of it"
    )]
    Secret,
    /// Something other than a secret key.
    #[error("this is no secret key; `omnilearn-hub key new` makes one")]
    NotSecret,
    /// Something other than the text of a signature.
    #[error(
        "a signature has the lines `key ..` and `signature ..` and no other; `omnilearn-hub kernel sign` writes them"
    )]
    NotSignature,
}

/// A signature that is not of the kernel it came with, or not by the key that it names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the signature of key {} is not of this kernel", key.short())]
pub struct WrongSignature {
    /// The key.
    pub key: PublicKey,
}

/// The system has no random numbers.
#[derive(Debug, thiserror::Error)]
#[error("no random numbers for a new key: {0}")]
pub struct NoRandomNumbers(getrandom::Error);

/// A key that signs, of a hub or of an author. `Debug` does not show the secret, and it is wiped when the key is dropped.
pub struct KeyPair(SigningKey);

/// The half of a key pair that everybody may know. It is shown in hexadecimal.
///
/// Any 32 bytes will do where they come from; those that are no key verify nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey([u8; 32]);

/// A kernel's signature, and the key that made it. As text it has two lines, the content of a signature file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature {
    key: PublicKey,
    bytes: [u8; 64],
}

fn message(digest: &[u8; 32]) -> Vec<u8> {
    [DOMAIN.as_slice(), digest].concat()
}

impl KeyPair {
    /// A new key.
    ///
    /// # Errors
    /// [`NoRandomNumbers`], on a system that is not set up.
    pub fn generate() -> Result<KeyPair, NoRandomNumbers> {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(NoRandomNumbers)?;
        Ok(KeyPair::from_secret(&secret))
    }

    /// The key of a secret.
    pub fn from_secret(secret: &[u8; 32]) -> KeyPair {
        KeyPair(SigningKey::from_bytes(secret))
    }

    /// Reads what [`KeyPair::secret_text`] writes; white space around it does not count.
    ///
    /// # Errors
    /// [`TextError`]
    pub fn parse_secret(text: &str) -> Result<KeyPair, TextError> {
        let digits = text.trim().strip_prefix(SECRET_MARK).ok_or(TextError::NotSecret)?;
        Ok(KeyPair::from_secret(&from_hex(digits)?))
    }

    /// The secret as text, for a file that only its owner can read.
    pub fn secret_text(&self) -> String {
        format!("{SECRET_MARK}{}\n", to_hex(self.0.as_bytes()))
    }

    /// The public half.
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key().to_bytes())
    }

    /// Signs the component of this SHA-256. Equal digests give equal signatures.
    pub fn sign(&self, digest: &[u8; 32]) -> Signature {
        Signature { key: self.public(), bytes: self.0.sign(&message(digest)).to_bytes() }
    }
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyPair(secret of {})", self.public().short())
    }
}

impl PublicKey {
    /// The first eight digits, for logs and messages.
    pub fn short(&self) -> String {
        to_hex(&self.0[..4])
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&to_hex(&self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

impl FromStr for PublicKey {
    type Err = TextError;

    fn from_str(text: &str) -> Result<PublicKey, TextError> {
        let text = text.trim();
        if text.starts_with(SECRET_MARK) {
            return Err(TextError::Secret);
        }
        let bytes = from_hex(text)?;
        // Half of all typing errors are noticed here, and a key for which anybody can sign is no key.
        let key = VerifyingKey::from_bytes(&bytes).ok().filter(|key| !key.is_weak());
        key.map(|_| PublicKey(bytes)).ok_or(TextError::NotPublic)
    }
}

impl Signature {
    /// Who signed, if [`Signature::verify`] agrees.
    pub fn key(&self) -> PublicKey {
        self.key
    }

    /// Checks that the key signed the component of this SHA-256. Of the many encodings that some verifiers take for the
    /// same signature, exactly one is taken here.
    ///
    /// # Errors
    /// [`WrongSignature`]
    pub fn verify(&self, digest: &[u8; 32]) -> Result<(), WrongSignature> {
        let signature = ed25519_dalek::Signature::from_bytes(&self.bytes);
        let verified =
            VerifyingKey::from_bytes(&self.key.0).and_then(|key| key.verify_strict(&message(digest), &signature));
        verified.map_err(|_| WrongSignature { key: self.key })
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key {}\nsignature {}\n", self.key, to_hex(&self.bytes))
    }
}

impl FromStr for Signature {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Signature, TextError> {
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let [key, signature] = lines[..] else { return Err(TextError::NotSignature) };
        let value = |line: &'_ str, name| line.strip_prefix(name).map(str::to_owned).ok_or(TextError::NotSignature);
        Ok(Signature { key: value(key, "key ")?.parse()?, bytes: from_hex(value(signature, "signature ")?.trim())? })
    }
}

impl From<&KernelSignature> for Signature {
    fn from(sent: &KernelSignature) -> Signature {
        Signature { key: PublicKey(sent.key), bytes: sent.signature }
    }
}

impl From<&Signature> for KernelSignature {
    fn from(signature: &Signature) -> KernelSignature {
        KernelSignature { key: signature.key.0, signature: signature.bytes }
    }
}
