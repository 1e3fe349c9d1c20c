//! Weights as safetensors, so that they open in Python.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use omnilearn_hub_core::Snapshot;
use omnilearn_wire::Codec;
use omnilearn_wire::frozen::Split;
use omnilearn_wire::layout::{Layout, TensorShape, elements};
use safetensors::SafeTensorError;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};

use crate::frozen_store::FrozenFile;

/// All tensors of a job, and the values of those that are not trained.
#[derive(Clone)]
pub(crate) struct Tensors {
    pub(crate) split: Arc<Split>,
    /// Where the values of frozen parameters are, if there are any.
    pub(crate) frozen: Option<FrozenFile>,
}

/// Elements that are encoded and written at a time.
const PIECE_ELEMENTS: usize = 64 << 10;

/// Why weights were not written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WeightsError {
    /// The file.
    #[error("cannot write weights to {path}: {cause}")]
    Io { path: String, cause: std::io::Error },
    /// The tensors do not make a file, such as two of one name.
    #[error("the tensors do not make a safetensors file: {0}")]
    Format(#[from] SafeTensorError),
}

/// Name, shape and place of each tensor: parameters, then shared buffers, in stream order.
fn header(layout: &Layout, metadata: HashMap<String, String>) -> Result<Vec<u8>, SafeTensorError> {
    let mut end = 0;
    let mut place = |tensor: &TensorShape| {
        let start = end;
        end += elements(&tensor.shape).unwrap_or(0) as usize * Codec::F32.element_bytes();
        let shape = tensor.shape.iter().map(|&dimension| dimension as usize).collect();
        (tensor.name.clone(), TensorInfo { dtype: Dtype::F32, shape, data_offsets: (start, end) })
    };
    let tensors = layout.parameters().iter().chain(layout.buffers()).map(&mut place).collect();
    let metadata = Metadata::new(Some(metadata), tensors)?;
    let mut header = serde_json::to_vec(&metadata)?;
    header.resize(header.len().next_multiple_of(8), b' '); // the format asks for it
    Ok(header)
}

/// Writes parameters, frozen ones too, and shared buffers under their names, in the kernel's order. Lets each block of the snapshot go once it is written, so that a
/// step that lands meanwhile copies little; the file appears whole or not at all, and is on disk when this returns.
///
/// # Errors
/// [`WeightsError`] with the path; a file that was there before is still there.
pub(crate) fn write(
    path: &Path,
    Tensors { split, frozen }: &Tensors,
    snapshot: Snapshot,
    metadata: HashMap<String, String>,
) -> Result<(), WeightsError> {
    let header = header(split.whole(), metadata)?;
    let write = || {
        let temporary = path.with_extension("safetensors.new");
        let mut file = File::create(&temporary)?;
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        let mut trained = Blocks::new(snapshot.parameters);
        let mut frozen = frozen.as_ref().map(|from| Copying { from, position: 0 });
        for (tensor, &is_frozen) in split.whole().parameters().iter().zip(split.is_frozen()) {
            let count = elements(&tensor.shape).unwrap_or(0) as usize; // a layout has no tensor without a size
            match &mut frozen {
                Some(frozen) if is_frozen => frozen.write(count, &mut file)?,
                _ => trained.write(count, &mut file)?,
            }
        }
        drop(trained);
        Blocks::new(vec![snapshot.buffers]).write(split.whole().buffer_elements(), &mut file)?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)?;
        if let Some(folder) = path.parent() {
            File::open(folder).and_then(|folder| folder.sync_all()).ok(); // not every file system can
        }
        Ok(())
    };
    write().map_err(|cause| WeightsError::Io { path: path.display().to_string(), cause })
}

/// Values that lie in blocks, whatever the tensors' sizes.
struct Blocks {
    rest: std::vec::IntoIter<Arc<[f32]>>,
    current: Arc<[f32]>,
    position: usize,
    piece: Vec<u8>,
}

impl Blocks {
    fn new(blocks: Vec<Arc<[f32]>>) -> Blocks {
        Blocks { rest: blocks.into_iter(), current: Arc::default(), position: 0, piece: Vec::new() }
    }

    /// Writes the next so many elements.
    fn write(&mut self, mut count: usize, file: &mut File) -> std::io::Result<()> {
        while count > 0 {
            if self.position == self.current.len() {
                self.current = self.rest.next().ok_or(std::io::ErrorKind::UnexpectedEof)?;
                self.position = 0;
            }
            let end = self.current.len().min(self.position + count.min(PIECE_ELEMENTS));
            self.piece.clear();
            Codec::F32.encode_into(&self.current[self.position..end], &mut self.piece);
            file.write_all(&self.piece)?;
            count -= end - self.position;
            self.position = end;
        }
        Ok(())
    }
}

/// Values that lie encoded on disk.
struct Copying<'a> {
    from: &'a FrozenFile,
    position: u64,
}

impl Copying<'_> {
    /// Copies the next so many elements.
    fn write(&mut self, count: usize, file: &mut File) -> std::io::Result<()> {
        let mut rest = count * Codec::F32.element_bytes();
        let mut piece = vec![0; rest.min(PIECE_ELEMENTS * Codec::F32.element_bytes())];
        while rest > 0 {
            let bytes = rest.min(piece.len());
            self.from.read(&mut piece[..bytes], self.position)?;
            file.write_all(&piece[..bytes])?;
            self.position += bytes as u64;
            rest -= bytes;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use omnilearn_wire::Version;
    use safetensors::SafeTensors;

    use super::*;
    use crate::frozen_store::FrozenStore;
    use crate::store::Store;

    #[test]
    fn tensors_come_back_by_name_though_they_lie_across_blocks() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job-1.safetensors");
        let tensor = |name: &str, shape: &[u32]| TensorShape { name: name.into(), shape: shape.to_vec() };
        let layout = Layout::new(
            vec![tensor("b.weight", &[3, 2]), tensor("a.bias", &[5])],
            vec![tensor("norm.running_mean", &[2])],
        )
        .unwrap();
        let values: Vec<f32> = (0..11).map(|index| index as f32).collect();
        let snapshot = Snapshot {
            version: Version(9),
            parameters: values.chunks(4).map(Arc::from).collect(),
            buffers: Arc::from(&[-1.0f32, -2.0][..]),
        };
        let tensors = Tensors { split: Arc::new(Split::new(layout, &[]).unwrap()), frozen: None };
        write(&path, &tensors, snapshot, HashMap::from([("version".into(), "9".into())])).unwrap();

        let bytes = std::fs::read(&path).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let read = |name: &str| {
            let tensor = tensors.tensor(name).unwrap();
            let values =
                tensor.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect::<Vec<_>>();
            (tensor.shape().to_vec(), values)
        };
        assert_eq!(read("b.weight"), (vec![3, 2], vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0]));
        assert_eq!(read("a.bias"), (vec![5], vec![6.0, 7.0, 8.0, 9.0, 10.0]));
        assert_eq!(read("norm.running_mean"), (vec![2], vec![-1.0, -2.0]));
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        assert_eq!(header.metadata().as_ref().unwrap()["version"], "9");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
    #[test]
    fn frozen_tensors_are_copied_between_trained_ones() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job-1.safetensors");
        let tensor = |name: &str, count: u32| TensorShape { name: name.into(), shape: vec![count] };
        let sizes = [3, PIECE_ELEMENTS as u32 + 1, 2, 4];
        let parameters = ["a", "b", "c", "d"].iter().zip(sizes).map(|(name, size)| tensor(name, size)).collect();
        let layout = Layout::new(parameters, vec![tensor("mean", 1)]).unwrap();
        let values: Vec<f32> = (0..layout.parameter_elements()).map(|index| index as f32).collect();
        let split = Split::new(layout, &[1, 3]).unwrap();
        let (trained, frozen) = split.part(values.clone());
        let mut encoded = Vec::new();
        Codec::F32.encode_into(&frozen, &mut encoded);
        let store = FrozenStore::new(Store::open(&folder.path().join("state"), "test").unwrap());
        let tensors = Tensors { split: Arc::new(split), frozen: Some(store.keep(&encoded).unwrap()) };
        let snapshot = Snapshot {
            version: Version(1),
            parameters: trained.chunks(4).map(Arc::from).collect(),
            buffers: Arc::from(&[-1.0f32][..]),
        };
        write(&path, &tensors, snapshot, HashMap::new()).unwrap();

        let bytes = std::fs::read(&path).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let mut start = 0;
        for (name, size) in ["a", "b", "c", "d"].iter().zip(sizes) {
            let mut expected = Vec::new();
            Codec::F32.encode_into(&values[start..start + size as usize], &mut expected);
            assert!(file.tensor(name).unwrap().data() == expected, "{name}");
            start += size as usize;
        }
        assert_eq!(file.tensor("mean").unwrap().data(), (-1.0f32).to_le_bytes());
    }
}
