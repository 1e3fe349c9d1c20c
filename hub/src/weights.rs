//! Weights as safetensors, so that they open in Python.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use omnilearn_hub_core::Snapshot;
use omnilearn_wire::layout::{Layout, elements};
use safetensors::tensor::{Dtype, View};

/// Why weights were not written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write weights to {path}: {cause}")]
pub(crate) struct WeightsError {
    path: String,
    cause: String,
}

/// A range of elements over blocks.
struct Tensor<'a> {
    blocks: &'a [Arc<[f32]>],
    shape: Vec<usize>,
    start: usize,
    elements: usize,
}

impl View for Tensor<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let mut bytes = Vec::with_capacity(self.data_len());
        let end = self.start + self.elements;
        let mut block_start = 0;
        for block in self.blocks {
            let block_end = block_start + block.len();
            if block_end > self.start && block_start < end {
                let values = &block[self.start.max(block_start) - block_start..end.min(block_end) - block_start];
                bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            }
            block_start = block_end;
        }
        Cow::Owned(bytes)
    }

    fn data_len(&self) -> usize {
        self.elements * 4
    }
}

/// Writes parameters and shared buffers under their names. Holds one tensor at a time; the file appears whole or not at all,
/// and is on disk when this returns.
///
/// # Errors
/// [`WeightsError`] with the path; a file that was there before is still there.
pub(crate) fn write(
    path: &Path,
    layout: &Layout,
    snapshot: &Snapshot,
    metadata: HashMap<String, String>,
) -> Result<(), WeightsError> {
    let failed =
        |cause: &dyn std::fmt::Display| WeightsError { path: path.display().to_string(), cause: cause.to_string() };
    let buffers = [Arc::clone(&snapshot.buffers)];
    let mut tensors = Vec::new();
    for (list, blocks) in [(layout.parameters(), &snapshot.parameters[..]), (layout.buffers(), &buffers[..])] {
        let mut start = 0;
        for tensor in list {
            let count = elements(&tensor.shape).unwrap_or(0) as usize;
            let shape = tensor.shape.iter().map(|&dimension| dimension as usize).collect();
            tensors.push((tensor.name.as_str(), Tensor { blocks, shape, start, elements: count }));
            start += count;
        }
    }
    let temporary = path.with_extension("safetensors.new");
    safetensors::serialize_to_file(tensors, Some(metadata), &temporary).map_err(|cause| failed(&cause))?;
    File::open(&temporary).and_then(|file| file.sync_all()).map_err(|cause| failed(&cause))?;
    std::fs::rename(&temporary, path).map_err(|cause| failed(&cause))?;
    if let Some(folder) = path.parent() {
        File::open(folder).and_then(|folder| folder.sync_all()).ok(); // not every file system can
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use omnilearn_wire::Version;
    use omnilearn_wire::layout::TensorShape;
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
        write(&path, &layout, &snapshot, HashMap::from([("version".into(), "9".into())])).unwrap();

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
