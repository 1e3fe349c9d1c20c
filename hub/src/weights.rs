//! Weights as safetensors, so that they open in Python.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use omnilearn_hub_core::Snapshot;
use omnilearn_wire::Codec;
use omnilearn_wire::layout::{Layout, TensorShape, elements};
use safetensors::SafeTensorError;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};

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

/// Writes parameters and shared buffers under their names. Lets each block of the snapshot go once it is written, so that a
/// step that lands meanwhile copies little; the file appears whole or not at all, and is on disk when this returns.
///
/// # Errors
/// [`WeightsError`] with the path; a file that was there before is still there.
pub(crate) fn write(
    path: &Path,
    layout: &Layout,
    snapshot: Snapshot,
    metadata: HashMap<String, String>,
) -> Result<(), WeightsError> {
    let header = header(layout, metadata)?;
    let write = || {
        let temporary = path.with_extension("safetensors.new");
        let mut file = File::create(&temporary)?;
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        let mut piece = Vec::new();
        for block in snapshot.parameters.into_iter().chain([snapshot.buffers]) {
            for values in block.chunks(PIECE_ELEMENTS) {
                piece.clear();
                Codec::F32.encode_into(values, &mut piece);
                file.write_all(&piece)?;
            }
        }
        file.sync_all()?;
        std::fs::rename(&temporary, path)?;
        if let Some(folder) = path.parent() {
            File::open(folder).and_then(|folder| folder.sync_all()).ok(); // not every file system can
        }
        Ok(())
    };
    write().map_err(|cause| WeightsError::Io { path: path.display().to_string(), cause })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use omnilearn_wire::Version;
    use safetensors::SafeTensors;

    use super::*;

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
        write(&path, &layout, snapshot, HashMap::from([("version".into(), "9".into())])).unwrap();

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
}
