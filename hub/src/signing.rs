//! Signatures of kernels: the file beside a component, and what agents get with a job.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use omnilearn_kernel_host::{KeyPair, Signature, TextError, WrongSignature};
use omnilearn_wire::message::KernelSignature;

use crate::digest;

/// Why a job is not taken with the signature that it came with.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AuthorError {
    #[error("the kernel's signature: {0}")]
    Text(#[from] TextError),
    #[error(
        "{0}: the component has changed since it was signed, or another key is named than the one that signed; sign it again \
         with `omnilearn-hub kernel sign`, or remove the signature file beside it"
    )]
    Wrong(#[from] WrongSignature),
}

/// Who stands behind a job's kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Signatures {
    hub: Signature,
    pub(crate) author: Option<Signature>,
}

impl Signatures {
    /// The hub's signature of the component with this digest, beside its author's, given as the content of a signature file.
    ///
    /// # Errors
    /// [`AuthorError`] if the author's is none, or of another component.
    pub(crate) fn new(hub: &KeyPair, digest: &[u8; 32], author: Option<&str>) -> Result<Signatures, AuthorError> {
        let author = author.map(str::parse::<Signature>).transpose()?;
        author.iter().try_for_each(|author| author.verify(digest))?;
        Ok(Signatures { hub: hub.sign(digest), author })
    }

    /// As agents get them: the hub's first.
    pub(crate) fn offered(&self) -> Vec<KernelSignature> {
        [self.hub].iter().chain(&self.author).map(KernelSignature::from).collect()
    }
}

/// Where the signature of a component lies: beside it, with `.sig` after its name.
pub fn path_beside(component: &Path) -> PathBuf {
    let mut path = OsString::from(component);
    path.push(".sig");
    PathBuf::from(path)
}

/// Signs a component for its author, in a file beside it that replaces an older one. Returns that file's path.
///
/// # Errors
/// When the component cannot be read or the signature not be written.
pub fn sign_file(component: &Path, key: &KeyPair) -> std::io::Result<PathBuf> {
    let signature = key.sign(&digest::sha256(&std::fs::read(component)?));
    let path = path_beside(component);
    // Under a name of its own until it is whole, so that nobody submits half a signature.
    let whole = path.with_extension(format!("sig.{}.new", std::process::id()));
    std::fs::write(&whole, signature.to_string())?;
    std::fs::rename(&whole, &path)?;
    Ok(path)
}

/// The content of the signature file beside a component, if there is one.
///
/// # Errors
/// When it is there and cannot be read.
pub(crate) fn read_beside(component: &Path) -> std::io::Result<Option<String>> {
    match std::fs::read(path_beside(component)) {
        // What is no text is refused by the hub with the rest.
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(cause),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signed_file_has_its_signature_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let component = folder.path().join("lenet.wasm");
        std::fs::write(&component, b"any bytes").unwrap();
        assert_eq!(read_beside(&component).unwrap(), None);
        let (hub, author) = (KeyPair::from_secret(&[1; 32]), KeyPair::from_secret(&[2; 32]));
        let path = sign_file(&component, &author).unwrap();
        assert_eq!(path, folder.path().join("lenet.wasm.sig"));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);

        let text = read_beside(&component).unwrap();
        let signatures = Signatures::new(&hub, &digest::sha256(b"any bytes"), text.as_deref()).unwrap();
        let keys: Vec<_> = signatures.offered().iter().map(|sent| Signature::from(sent).key()).collect();
        assert_eq!(keys, [hub.public(), author.public()]);
        let error = Signatures::new(&hub, &digest::sha256(b"other bytes"), text.as_deref()).unwrap_err();
        assert!(matches!(error, AuthorError::Wrong(_)), "{error}");

        // Signing again after a change of the component makes it right.
        std::fs::write(&component, b"other bytes").unwrap();
        sign_file(&component, &author).unwrap();
        let text = read_beside(&component).unwrap();
        Signatures::new(&hub, &digest::sha256(b"other bytes"), text.as_deref()).unwrap();
    }

    #[test]
    fn a_kernel_without_an_author_has_the_hubs_signature_alone() {
        let hub = KeyPair::from_secret(&[1; 32]);
        assert_eq!(Signatures::new(&hub, &[9; 32], None).unwrap().offered().len(), 1);
        let error = Signatures::new(&hub, &[9; 32], Some("\u{fffd}")).unwrap_err();
        assert!(error.to_string().starts_with("the kernel's signature: a signature has the lines"), "{error}");
    }
}
