use std::fs;
use std::path::Path;
use std::time::SystemTime;

use omnilearn_wire::limits::KERNEL_BYTES_MAX;
use omnilearn_wire::sampling::SplitMix64;

use super::textual::Textual;
use super::{component, kernel};
use crate::{Kernel, OpenError};

fn text(component: &str) -> Vec<u8> {
    wat::parse_str(component).unwrap()
}

fn refusal(bytes: &[u8]) -> OpenError {
    Kernel::open(bytes).unwrap_err()
}

#[test]
fn a_foreign_import_is_refused_by_its_name() {
    for name in [
        "wasi:cli/environment@0.2.0",
        "omnilearn:kernel/tensors@0.1.0",
        "omnilearn:kernel/tensor@0.2.0",
        "omnilearn:kernel/tensor",
    ] {
        let bytes = text(&format!(r#"(component (import "{name}" (instance)))"#));
        assert_eq!(refusal(&bytes), OpenError::ForeignImport { name: name.to_owned() });
    }
    let function = text(r#"(component (import "now" (func (result u64))))"#);
    assert_eq!(refusal(&function), OpenError::ForeignImport { name: "now".to_owned() });
}

#[test]
fn a_component_that_is_no_model_is_refused() {
    assert_eq!(refusal(&text("(component)")), OpenError::NoModel);
    let empty = text(r#"(component (instance $i) (export "omnilearn:kernel/model@0.1.0" (instance $i)))"#);
    assert!(matches!(refusal(&empty), OpenError::Interface { .. }));
}

#[test]
fn an_operation_that_the_interface_lacks_is_refused() {
    let bytes = text(
        r#"(component
            (import "omnilearn:kernel/tensor@0.1.0" (instance (export "read-file" (func))))
            (instance $i) (export "omnilearn:kernel/model@0.1.0" (instance $i)))"#,
    );
    let OpenError::Interface { message } = refusal(&bytes) else { panic!() };
    assert!(message.contains("read-file"), "{message}");
}

#[test]
fn what_is_no_component_is_refused_as_such() {
    for bytes in [&b""[..], b"\0asm", b"\x7fELF and more", b"(component)", &text("(module)")] {
        assert_eq!(refusal(bytes), OpenError::NotComponent);
    }
}

#[test]
fn a_component_over_the_size_limit_is_refused_before_it_is_read() {
    let bytes = vec![0; KERNEL_BYTES_MAX as usize + 1];
    assert_eq!(refusal(&bytes), OpenError::TooLarge { bytes: KERNEL_BYTES_MAX + 1 });
}

#[test]
fn truncated_and_flipped_components_never_panic() {
    let honest = Textual::default().component();
    // Past the last section that matters only names are cut off.
    for end in 0..honest.len() {
        let opened = Kernel::open(&honest[..end]);
        assert!(opened.is_err() || end > honest.len() / 2, "{end} of {}", honest.len());
    }
    let mut generator = SplitMix64::new(7);
    for _ in 0..500 {
        let mut bytes = honest.clone();
        for _ in 0..=generator.below(3) {
            let position = generator.below(bytes.len() as u64) as usize;
            bytes[position] ^= 1 << generator.below(8);
        }
        if let Ok(kernel) = Kernel::open(&bytes) {
            let _ = kernel.describe(&[]);
        }
    }
}

#[test]
fn random_bytes_after_a_components_first_eight_never_panic() {
    let mut generator = SplitMix64::new(11);
    for length in 0..200 {
        let mut bytes = b"\0asm\x0d\x00\x01\x00".to_vec();
        bytes.extend((0..length).map(|_| generator.next_u64() as u8));
        let _ = Kernel::open(&bytes);
    }
}

#[test]
fn the_digest_is_that_of_the_bytes() {
    use sha2::{Digest, Sha256};
    assert_eq!(kernel("mlp").digest()[..], Sha256::digest(component("mlp"))[..]);
}

/// The one entry of a cache folder and when it was written.
fn only_entry(folder: &Path) -> (std::path::PathBuf, SystemTime) {
    let entries: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap()).collect();
    assert_eq!(entries.len(), 1, "{entries:?}");
    (entries[0].path(), entries[0].metadata().unwrap().modified().unwrap())
}

#[test]
fn compiled_code_is_kept_and_used_again() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = Textual::default().component();
    Kernel::open_cached(&bytes, folder.path()).unwrap();
    let (path, written) = only_entry(folder.path());
    Kernel::open_cached(&bytes, folder.path()).unwrap();
    assert_eq!(only_entry(folder.path()), (path, written));
}

#[test]
fn a_damaged_entry_is_rebuilt() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = component("lenet");
    Kernel::open_cached(&bytes, folder.path()).unwrap();
    let (path, _) = only_entry(folder.path());
    let whole = fs::read(&path).unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    for damaged in [&flipped[..], &whole[..whole.len() / 2], &whole[..10], b""] {
        fs::write(&path, damaged).unwrap();
        let kernel = Kernel::open_cached(&bytes, folder.path()).unwrap();
        assert_eq!(kernel.describe(&[]).unwrap().parameters.len(), 10);
        assert_eq!(fs::read(&path).unwrap()[32..].len(), whole[32..].len());
    }
}

#[cfg(unix)]
#[test]
fn an_entry_that_another_user_could_have_written_is_rebuilt() {
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir().unwrap();
    let bytes = Textual::default().component();
    Kernel::open_cached(&bytes, folder.path()).unwrap();
    let (path, _) = only_entry(folder.path());
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    for (writable, mode, private) in [(&path, 0o666, 0o600), (&folder.path().to_owned(), 0o777, 0o700)] {
        fs::set_permissions(writable, fs::Permissions::from_mode(mode)).unwrap();
        let before = path.metadata().unwrap().modified().unwrap();
        Kernel::open_cached(&bytes, folder.path()).unwrap();
        assert_ne!(only_entry(folder.path()).1, before, "{mode:o}");
        fs::set_permissions(writable, fs::Permissions::from_mode(private)).unwrap();
    }
    let entry = only_entry(folder.path());
    Kernel::open_cached(&bytes, folder.path()).unwrap();
    assert_eq!(only_entry(folder.path()), entry);
}

#[test]
fn a_whole_entry_of_another_engine_is_rebuilt() {
    use sha2::{Digest, Sha256};
    let folder = tempfile::tempdir().unwrap();
    let bytes = Textual::default().component();
    Kernel::open_cached(&bytes, folder.path()).unwrap();
    let (path, _) = only_entry(folder.path());
    // Code that another configuration compiled, under the name and with the sum that would be right here.
    let other = wasmtime::Engine::default();
    let code = other.precompile_component(&bytes).unwrap();
    fs::write(&path, [Sha256::digest(&code).as_slice(), &code].concat()).unwrap();
    Kernel::open_cached(&bytes, folder.path()).unwrap().describe(&[]).unwrap_err();
    assert_ne!(fs::read(&path).unwrap()[32..], code);
}

#[test]
fn a_folder_that_cannot_be_written_costs_only_time() {
    let file = tempfile::NamedTempFile::new().unwrap();
    Kernel::open_cached(&component("mlp"), &file.path().join("below-a-file")).unwrap();
}
