//! Getting a data set: found on the machine, installed from Debian, or fetched from its authors and checked.

use std::env;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use flate2::read::GzDecoder;
use omnilearn_wire::dataset::{self, DatasetSpec, IdxFile};
use sha2::{Digest, Sha256};

use crate::workspace::{has_program, run};

/// Where Debian's data set packages put their files, in a folder of the data set's name.
const DEBIAN_FOLDER: &str = "/usr/share/datasets";

/// The data set of this name.
///
/// # Errors
/// For an unknown name, with the known ones.
pub(crate) fn find_spec(name: &str) -> anyhow::Result<&'static DatasetSpec> {
    let known = || dataset::CATALOGUE.iter().map(|spec| spec.name).collect::<Vec<_>>().join(", ");
    dataset::find(name).with_context(|| format!("there is no data set `{name}`; known: {}", known()))
}

/// The folder with the data set's files, which are got if they are nowhere yet. `report` takes a line about what is done.
///
/// # Errors
/// One line that says what to do by hand.
pub(crate) fn provide(spec: &DatasetSpec, given: Option<&Path>, report: &dyn Fn(&str)) -> anyhow::Result<PathBuf> {
    if let Some(folder) = given {
        let candidates = [folder.to_owned(), folder.join(spec.name)];
        return candidates.into_iter().find(|folder| is_complete(spec, folder)).with_context(|| {
            format!("{} does not hold the files of {} ({} …)", folder.display(), spec.name, spec.train_images.name)
        });
    }
    let cache = cache_folder()?.join("datasets").join(spec.name);
    let debian = Path::new(DEBIAN_FOLDER).join(spec.name);
    if let Some(folder) = [&debian, &cache].into_iter().find(|folder| is_complete(spec, folder)) {
        return Ok(folder.clone());
    }
    let package = format!("dataset-{}", spec.name);
    if spec.how_to_get.contains(&package) && has_program("apt-get") && rustix::process::geteuid().is_root() {
        report(&format!("installing Debian's {package}"));
        // Standard output belongs to our caller's results.
        let apt = |arguments: &[&str]| {
            let mut command = Command::new("apt-get");
            command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive").stdout(Stdio::null());
            run(command)
        };
        let installed = apt(&["install", "--yes", "--no-install-recommends", &package]).or_else(|_| {
            apt(&["update"])?;
            apt(&["install", "--yes", "--no-install-recommends", &package])
        });
        match installed {
            Ok(()) if is_complete(spec, &debian) => return Ok(debian),
            Ok(()) => report(&format!("{package} does not hold what was expected")),
            Err(error) => report(&format!("{error}; trying the authors' server")),
        }
    }
    fetch(spec, &cache, report)
        .with_context(|| format!("{} is not on this machine; {}", spec.name, spec.how_to_get))?;
    Ok(cache)
}

/// The user's cache folder for OmniLearn, which agents use too: a data set is unpacked and checked there once.
pub(crate) fn cache_folder() -> anyhow::Result<PathBuf> {
    let base = env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")));
    Ok(base.context("neither XDG_CACHE_HOME nor HOME is set")?.join("omnilearn"))
}

fn files(spec: &DatasetSpec) -> [&IdxFile; 4] {
    [&spec.train_images, &spec.train_labels, &spec.test_images, &spec.test_labels]
}

/// Whether all files are there. Agents check the digests when they open them.
fn is_complete(spec: &DatasetSpec, folder: &Path) -> bool {
    files(spec).iter().all(|file| find_file(folder, file).is_some())
}

/// A file of a data set, plain or else gzipped.
pub(crate) fn find_file(folder: &Path, file: &IdxFile) -> Option<PathBuf> {
    let names = [file.name.to_owned(), format!("{}.gz", file.name)];
    names.into_iter().map(|name| folder.join(name)).find(|path| path.is_file())
}

/// Fetches every file that is missing from the first mirror that has it, checks it and only then gives it its name.
fn fetch(spec: &DatasetSpec, folder: &Path, report: &dyn Fn(&str)) -> anyhow::Result<()> {
    if spec.mirrors.is_empty() {
        bail!("nobody serves its files");
    }
    fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    for file in files(spec) {
        let target = folder.join(format!("{}.gz", file.name));
        if target.is_file() {
            continue;
        }
        let part = folder.join(format!("{}.gz.part", file.name));
        let mut failure = None;
        for mirror in spec.mirrors {
            let address = format!("{mirror}/{}.gz", file.name);
            report(&format!("fetching {address}"));
            failure = download(&address, &part).and_then(|()| check(&part, file)).err();
            if failure.is_none() {
                break;
            }
        }
        if let Some(failure) = failure {
            if part.exists() {
                fs::remove_file(&part).with_context(|| format!("removing {}", part.display()))?;
            }
            return Err(failure);
        }
        fs::rename(&part, &target).with_context(|| format!("renaming {}", part.display()))?;
    }
    Ok(())
}

/// One file by curl or wget: they bring the machine's own certificates and proxies, and us no TLS stack.
fn download(address: &str, target: &Path) -> anyhow::Result<()> {
    let mut command = if has_program("curl") {
        let mut command = Command::new("curl");
        command.args([
            "--fail",
            "--silent",
            "--show-error",
            "--location",
            "--retry",
            "3",
            "--connect-timeout",
            "20",
            "--output",
        ]);
        command
    } else if has_program("wget") {
        let mut command = Command::new("wget");
        command.args(["--quiet", "--tries=3", "--timeout=20", "--output-document"]);
        command
    } else {
        bail!("neither curl nor wget is installed");
    };
    command.arg(target).arg(address);
    run(command)
}

/// Compares the SHA-256 of the uncompressed file with the catalogue's.
fn check(gzipped: &Path, file: &IdxFile) -> anyhow::Result<()> {
    let opened = File::open(gzipped).with_context(|| format!("opening {}", gzipped.display()))?;
    let mut plain = GzDecoder::new(io::BufReader::new(opened));
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let count = plain.read(&mut buffer).with_context(|| format!("unpacking {}", gzipped.display()))?;
        if count == 0 {
            break;
        }
        hasher.update(&buffer[..count]);
    }
    let found: String = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    if found != file.sha256 {
        bail!("{} has SHA-256 {found}, expected {}", file.name, file.sha256);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    /// SHA-256 of `abc`.
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn gzipped(path: &Path, text: &str) {
        let mut encoder = GzEncoder::new(File::create(path).unwrap(), Compression::default());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap();
    }

    /// A data set whose four files all hold `abc`, served from a folder.
    fn served(folder: &Path) -> DatasetSpec {
        let file = |name| IdxFile { name, sha256: ABC };
        let mirror: &'static str = Box::leak(format!("file://{}", folder.display()).into_boxed_str());
        DatasetSpec {
            train_images: file("a"),
            train_labels: file("b"),
            test_images: file("c"),
            test_labels: file("d"),
            mirrors: Box::leak(Box::new([mirror])),
            ..dataset::CATALOGUE[0]
        }
    }

    #[test]
    fn a_file_with_the_right_digest_passes_and_any_other_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.gz");
        gzipped(&path, "abc");
        check(&path, &IdxFile { name: "a", sha256: ABC }).unwrap();
        gzipped(&path, "abd");
        assert!(
            check(&path, &IdxFile { name: "a", sha256: ABC }).unwrap_err().to_string().contains("expected ba7816bf")
        );
        fs::write(&path, "an error page").unwrap();
        assert!(check(&path, &IdxFile { name: "a", sha256: ABC }).is_err());
    }

    #[test]
    fn files_are_fetched_checked_and_named_and_a_bad_one_leaves_nothing() {
        if !has_program("curl") {
            eprintln!("skipped: curl is not installed");
            return;
        }
        let (source, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for name in ["a", "b", "c", "d"] {
            gzipped(&source.path().join(format!("{name}.gz")), "abc");
        }
        gzipped(&source.path().join("d.gz"), "tampered");
        let spec = served(source.path());
        assert!(fetch(&spec, target.path(), &|_| {}).is_err());
        assert!(!is_complete(&spec, target.path()));
        assert_eq!(fs::read_dir(target.path()).unwrap().count(), 3);

        gzipped(&source.path().join("d.gz"), "abc");
        fetch(&spec, target.path(), &|_| {}).unwrap();
        assert!(is_complete(&spec, target.path()));
        assert_eq!(provide(&spec, Some(target.path()), &|_| {}).unwrap(), target.path());
    }

    #[test]
    fn a_given_folder_without_the_files_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = provide(&dataset::CATALOGUE[0], Some(folder.path()), &|_| {}).unwrap_err().to_string();
        assert!(error.contains("train-images-idx3-ubyte"), "{error}");
    }

    #[test]
    fn an_unknown_data_set_is_answered_with_the_known_ones() {
        assert!(find_spec("cifar").unwrap_err().to_string().contains("fashion-mnist, mnist"));
    }
}
