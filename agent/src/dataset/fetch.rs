//! Fetching files from the hub, those of a data set above all, piece by piece, into the cache.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use omnilearn_datasets::manifest::MANIFEST_BYTES_MAX;
use omnilearn_datasets::{Dataset, Library, Manifest};
use omnilearn_wire::limits::CHUNK_BYTES;
use omnilearn_wire::message::ManifestRef;
use tracing::{info, warn};

use super::cache::{Arrival, Begin, DataCache, Held};

/// Pieces that are asked for and have not come: enough for the link never to stand still, few enough that the hub can turn to
/// something else at any time.
pub const IN_FLIGHT_MAX: usize = 4;
/// How often the log says how far a fetch is.
const REPORT_EVERY: Duration = Duration::from_secs(5);
/// How often to look whether another agent has finished a file that it fetches into the same folder.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// A piece of a file that came from the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Length of the whole; 0 if the hub does not have the file.
    pub total: u64,
    /// The piece.
    pub bytes: Bytes,
}

/// The connection broke, or nobody wants the file any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the fetch was cut off; what has come is kept for the next try")]
pub struct Interrupted;

/// A hub that files can be asked of.
pub trait HubFiles {
    /// Asks for a piece of a file. Pieces come in the order in which they were asked for.
    fn ask(&mut self, digest: [u8; 32], offset: u64, bytes: u32);

    /// Waits for the next piece.
    ///
    /// # Errors
    /// [`Interrupted`].
    fn piece(&mut self) -> Result<Piece, Interrupted>;

    /// Waits a while for something else.
    ///
    /// # Errors
    /// [`Interrupted`].
    fn pause(&mut self, time: Duration) -> Result<(), Interrupted>;
}

/// The data set of a job's offer: from a hub's library on this machine, from the cache, or from the hub.
///
/// # Errors
/// Why it cannot be had, for the hub's operator.
pub fn dataset(
    name: &str,
    wanted: ManifestRef,
    folders: &[PathBuf],
    cache: &DataCache,
    hub: &mut dyn HubFiles,
) -> Result<Dataset, String> {
    for folder in folders {
        let library = Library::at(folder);
        if let Ok(Some(found)) = library.find(name)
            && found.digest == wanted.digest
        {
            return library.open(&found.manifest).map_err(|error| error.to_string());
        }
    }
    if wanted.bytes == 0 || wanted.bytes > MANIFEST_BYTES_MAX {
        return Err(format!(
            "the manifest of data set `{name}` has {} bytes, 1 to {MANIFEST_BYTES_MAX} are taken",
            wanted.bytes
        ));
    }
    let what = format!("data set `{name}`");
    let mut fetch = Fetch { what: &what, cache, hub, keep: vec![wanted.digest] };
    let held = fetch.file(&wanted.digest, wanted.bytes)?;
    let manifest = read_manifest(held.file, &held.path)?;
    if manifest.name != name {
        return Err(format!("the manifest is that of data set `{}`, the job names `{name}`", manifest.name));
    }
    fetch.keep.extend([manifest.train.sha256, manifest.test.sha256]);
    let train = fetch.file(&manifest.train.sha256, manifest.train.bytes)?;
    let test = fetch.file(&manifest.test.sha256, manifest.test.bytes)?;
    // Their locks last as long as the data set.
    let files = [train, test].map(|held| (held.file, held.path));
    Dataset::packed(&manifest, files).map_err(|error| error.to_string())
}

/// A file of a job that is no data set's: from the cache or from the hub. `what` it is, for messages.
///
/// # Errors
/// Why it cannot be had, for the hub's operator.
pub fn file(
    what: &str,
    digest: &[u8; 32],
    bytes: u64,
    cache: &DataCache,
    hub: &mut dyn HubFiles,
) -> Result<Held, String> {
    Fetch { what, cache, hub, keep: vec![*digest] }.file(digest, bytes)
}

fn read_manifest(mut file: File, path: &Path) -> Result<Manifest, String> {
    let mut bytes = Vec::new();
    let read = std::io::Seek::rewind(&mut file).and_then(|()| file.take(MANIFEST_BYTES_MAX).read_to_end(&mut bytes));
    read.map_err(|cause| format!("cannot read {}: {cause}", path.display()))?;
    Manifest::parse(&bytes).map_err(|error| error.to_string())
}

struct Fetch<'a> {
    /// Whose files, for messages.
    what: &'a str,
    cache: &'a DataCache,
    hub: &'a mut dyn HubFiles,
    /// What must not be removed to make room.
    keep: Vec<[u8; 32]>,
}

impl Fetch<'_> {
    /// A file that is here whole, or is when this returns.
    fn file(&mut self, digest: &[u8; 32], bytes: u64) -> Result<Held, String> {
        let mut told = false;
        loop {
            if let Some(held) = self.cache.open(digest) {
                return Ok(held);
            }
            let begun = self.cache.begin(digest, bytes, &self.keep);
            match begun.map_err(|error| format!("{}: {error}", self.what))? {
                Begin::Arriving(arrival) => return self.fetch(digest, bytes, *arrival),
                Begin::Elsewhere => {
                    if !std::mem::replace(&mut told, true) {
                        info!(what = self.what, "another agent on this machine fetches it");
                    }
                    self.hub.pause(LOOK_EVERY).map_err(|error| error.to_string())?;
                }
            }
        }
    }

    fn fetch(&mut self, digest: &[u8; 32], total: u64, mut arrival: Arrival) -> Result<Held, String> {
        let start = arrival.offset();
        let (mut asked, mut in_flight) = (start, 0);
        let (began, mut reported) = (Instant::now(), Instant::now());
        if start > 0 {
            let (there, of) = (mib(start), mib(total));
            info!(what = self.what, there, of, "the fetch goes on where it was cut off, in MiB");
        }
        while arrival.offset() < total {
            while asked < total && in_flight < IN_FLIGHT_MAX {
                let bytes = (total - asked).min(CHUNK_BYTES as u64);
                self.hub.ask(*digest, asked, bytes as u32);
                asked += bytes;
                in_flight += 1;
            }
            let Piece { total: found, bytes } = self.hub.piece().map_err(|error| error.to_string())?;
            in_flight -= 1;
            let expected = (total - arrival.offset()).min(CHUNK_BYTES as u64);
            if found == 0 && total > 0 {
                return Err(format!("the hub no longer has {}", self.what));
            }
            if found != total || bytes.len() as u64 != expected {
                return Err(format!(
                    "the hub sent {} bytes of a file of {found} of {}, expected {expected} of {total}",
                    bytes.len(),
                    self.what
                ));
            }
            arrival.write(&bytes).map_err(|error| format!("{}: {error}", self.what))?;
            if reported.elapsed() >= REPORT_EVERY {
                reported = Instant::now();
                let (done, of) = (mib(arrival.offset()), mib(total));
                info!(what = self.what, done, of, "fetching from the hub, in MiB");
            }
        }
        let held = self.cache.finish(arrival).map_err(|error| {
            warn!(what = self.what, %error, "a file came damaged");
            format!("{}: {error}", self.what)
        })?;
        if total > 0 {
            let took_s = format!("{:.1}", began.elapsed().as_secs_f64());
            info!(what = self.what, bytes = total - start, took_s, "fetched a file from the hub");
        }
        Ok(held)
    }
}

fn mib(bytes: u64) -> u64 {
    bytes >> 20
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use omnilearn_datasets::import::{ImageOptions, Options, import};

    use super::*;

    /// A hub that has a library and breaks off after some pieces.
    struct Cut<'a> {
        library: &'a Library,
        asked: VecDeque<([u8; 32], u64, u32)>,
        offsets: Vec<u64>,
        left: usize,
        flip: bool,
    }

    impl HubFiles for Cut<'_> {
        fn ask(&mut self, digest: [u8; 32], offset: u64, bytes: u32) {
            self.asked.push_back((digest, offset, bytes));
            assert!(self.asked.len() <= IN_FLIGHT_MAX);
        }

        fn piece(&mut self) -> Result<Piece, Interrupted> {
            self.left = self.left.checked_sub(1).ok_or(Interrupted)?;
            let (digest, offset, bytes) = self.asked.pop_front().unwrap();
            self.offsets.push(offset);
            let found = self.library.piece(&digest, offset, bytes as usize).unwrap();
            let (mut piece, total) = found.unwrap_or_default();
            if self.flip {
                piece[0] ^= 1;
            }
            Ok(Piece { total, bytes: Bytes::from(piece) })
        }

        fn pause(&mut self, _: Duration) -> Result<(), Interrupted> {
            Err(Interrupted)
        }
    }

    fn hub(library: &Library, left: usize) -> Cut<'_> {
        Cut { library, asked: VecDeque::new(), offsets: Vec::new(), left, flip: false }
    }

    /// A text of several pieces in a library.
    fn library(folder: &Path) -> (Library, ManifestRef) {
        let library = Library::at(&folder.join("library"));
        let source = folder.join("a.txt");
        let text: Vec<u8> = (0..5 * CHUNK_BYTES / 2).map(|index| ((index * index) >> 7) as u8).collect();
        std::fs::write(&source, text).unwrap();
        let options = Options { images: ImageOptions::default(), test_part: 0.01, ..Options::default() };
        let found = import(&library, "text", &[source], &options, &mut |_| ()).unwrap().added.found;
        (library, ManifestRef { digest: found.digest, bytes: found.bytes })
    }

    #[test]
    fn a_fetch_goes_on_after_each_cut_and_asks_for_nothing_twice() {
        let folder = tempfile::tempdir().unwrap();
        let (library, wanted) = library(folder.path());
        let cache = DataCache::new(&folder.path().join("cache"), 100 << 20);
        let mut pieces = 0;
        for _ in 0..5 {
            let mut cut = hub(&library, 1);
            let error = dataset("text", wanted, &[], &cache, &mut cut).err();
            pieces += cut.offsets.len();
            match error {
                Some(error) => assert!(error.contains("kept for the next try"), "{error}"),
                None => break,
            }
        }
        // The manifest, three pieces of the training split and one of the test split.
        assert_eq!(pieces, 5);
        let mut nobody = hub(&library, 0);
        let dataset = dataset("text", wanted, &[], &cache, &mut nobody).unwrap();
        assert_eq!(dataset.outline().train, (5 * CHUNK_BYTES / 2) as u64 * 99 / 100 + 1);
    }

    #[test]
    fn a_data_set_that_does_not_fit_or_comes_damaged_is_declined_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let (library, wanted) = library(folder.path());
        let small = DataCache::new(&folder.path().join("small"), 1 << 20);
        let error = dataset("text", wanted, &[], &small, &mut hub(&library, 9)).unwrap_err();
        assert!(error.contains("--data-cache-max"), "{error}");
        let cache = DataCache::new(&folder.path().join("cache"), 100 << 20);
        let mut flipping = Cut { flip: true, ..hub(&library, 9) };
        let error = dataset("text", wanted, &[], &cache, &mut flipping).unwrap_err();
        assert!(error.contains("other bytes than the digest"), "{error}");
        let unknown = ManifestRef { digest: [1; 32], ..wanted };
        let error = dataset("text", unknown, &[], &cache, &mut hub(&library, 9)).unwrap_err();
        assert!(error.contains("no longer has data set `text`"), "{error}");
        let error = dataset("text", ManifestRef { bytes: u64::MAX, ..wanted }, &[], &cache, &mut hub(&library, 9));
        assert!(error.unwrap_err().contains("are taken"));
        let error = dataset("other", wanted, &[], &cache, &mut hub(&library, 9)).unwrap_err();
        assert!(error.contains("the job names `other`"), "{error}");
    }

    #[test]
    fn a_file_that_is_no_data_sets_comes_the_same_way() {
        let folder = tempfile::tempdir().unwrap();
        let (library, wanted) = library(folder.path());
        let cache = DataCache::new(&folder.path().join("cache"), 100 << 20);
        let what = "the frozen parameters";
        let held = file(what, &wanted.digest, wanted.bytes, &cache, &mut hub(&library, 1)).unwrap();
        assert_eq!(held.file.metadata().unwrap().len(), wanted.bytes);
        assert!(file(what, &wanted.digest, wanted.bytes, &cache, &mut hub(&library, 0)).is_ok(), "it is here now");
        let error = file(what, &[1; 32], 5, &cache, &mut hub(&library, 1)).unwrap_err();
        assert_eq!(error, "the hub no longer has the frozen parameters");
    }

    #[test]
    fn a_library_on_this_machine_is_used_where_it_lies() {
        let folder = tempfile::tempdir().unwrap();
        let (library, wanted) = library(folder.path());
        let cache = DataCache::new(&folder.path().join("cache"), 1);
        let folders = [folder.path().join("library")];
        assert!(dataset("text", wanted, &folders, &cache, &mut hub(&library, 0)).is_ok());
    }
}
