//! Shared buffers, such as running statistics of batch normalisation, which are merged by samples.

use std::sync::Arc;

/// BSP: the mean over accepted updates, new = Σ b_k·buffer_k / Σ b_k.
///
/// - Order: summed in `f64` in the order given, which is by agent, so that equal inputs give equal bits.
pub(crate) fn merge<'a>(updates: impl Iterator<Item = (u32, &'a [f32])> + Clone) -> Option<Arc<[f32]>> {
    let weight: f64 = updates.clone().map(|(samples, _)| f64::from(samples)).sum();
    let elements = updates.clone().next()?.1.len();
    let mut sums = vec![0.0f64; elements];
    for (samples, values) in updates {
        for (sum, &value) in sums.iter_mut().zip(values) {
            *sum += f64::from(samples) * f64::from(value);
        }
    }
    Some(sums.into_iter().map(|sum| (sum / weight) as f32).collect())
}

/// ASP: blended in on arrival by the update's part of the global batch, new = (1 − b_k/B)·old + (b_k/B)·buffer_k, so that K
/// updates count about as much as one merge of K.
pub(crate) fn blend(buffers: &mut Arc<[f32]>, values: &[f32], samples: u32, global_batch: u32) {
    let part = (f64::from(samples) / f64::from(global_batch)).min(1.0) as f32;
    for (buffer, &value) in Arc::make_mut(buffers).iter_mut().zip(values) {
        *buffer += part * (value - *buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merging_weighs_by_samples() {
        let (a, b) = ([1.0, 0.0], [4.0, 3.0]);
        let merged = merge([(2, a.as_slice()), (1, b.as_slice())].into_iter()).unwrap();
        assert_eq!(&*merged, [2.0, 1.0]);
        assert_eq!(merge(std::iter::empty()), None);
    }

    #[test]
    fn blending_moves_by_the_part_of_the_global_batch() {
        let mut buffers: Arc<[f32]> = Arc::from([1.0, 8.0]);
        blend(&mut buffers, &[5.0, 0.0], 16, 64);
        assert_eq!(&*buffers, [2.0, 6.0]);
        blend(&mut buffers, &[5.0, 0.0], 128, 64);
        assert_eq!(&*buffers, [5.0, 0.0]);
    }
}
