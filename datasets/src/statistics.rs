//! Mean and standard deviation of training samples, channel by channel, while they pass.

use crate::form::{Element, Input, Normalise};

/// Channels up to which each has numbers of its own; with more, one pair is for all.
const CHANNELS_MAX: usize = 4096;

/// What has passed so far.
#[derive(Debug)]
pub(crate) enum Statistics {
    /// How often each byte came, in each channel: exact, whatever the number of samples.
    Bytes(Vec<[u64; 256]>),
    /// Sums in each channel.
    Numbers(Vec<Sums>),
    /// Nothing is normalised.
    Off,
}

/// Sums of the differences from the first value, so that a large mean costs no digits.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sums {
    count: u64,
    first: f64,
    sum: f64,
    squares: f64,
}

impl Sums {
    fn add(&mut self, value: f64) {
        if self.count == 0 {
            self.first = value;
        }
        let difference = value - self.first;
        self.count += 1;
        self.sum += difference;
        self.squares += difference * difference;
    }

    fn moments(&self) -> (f64, f64) {
        let count = self.count.max(1) as f64;
        let mean = self.sum / count;
        (self.first + mean, (self.squares / count - mean * mean).max(0.0).sqrt())
    }
}

impl Statistics {
    pub(crate) fn new(input: &Input) -> Statistics {
        match input {
            Input::Array { element: Element::U8, shape, .. } => Statistics::Bytes(vec![[0; 256]; channels(shape)]),
            Input::Array { element: Element::F32, shape, .. } => {
                Statistics::Numbers(vec![Sums::default(); channels(shape)])
            }
            _ => Statistics::Off,
        }
    }

    /// Takes a sample's input as it lies in its record.
    pub(crate) fn add(&mut self, input: &[u8]) {
        match self {
            Statistics::Bytes(channels) => {
                let length = input.len() / channels.len();
                for (counts, bytes) in channels.iter_mut().zip(input.chunks(length)) {
                    bytes.iter().for_each(|&byte| counts[usize::from(byte)] += 1);
                }
            }
            Statistics::Numbers(channels) => {
                let values = input.as_chunks::<4>().0;
                let length = values.len() / channels.len();
                for (sums, values) in channels.iter_mut().zip(values.chunks(length)) {
                    values.iter().for_each(|bytes| sums.add(f32::from_le_bytes(*bytes).into()));
                }
            }
            Statistics::Off => {}
        }
    }

    /// Means and deviations. A channel in which all is the same is moved to zero and not stretched.
    pub(crate) fn normalise(&self) -> Option<Normalise> {
        let moments: Vec<(f64, f64)> = match self {
            Statistics::Bytes(channels) => channels.iter().map(byte_moments).collect(),
            Statistics::Numbers(channels) => channels.iter().map(Sums::moments).collect(),
            Statistics::Off => return None,
        };
        let deviation = |&(mean, deviation): &(f64, f64)| match deviation > 1e-6 * mean.abs().max(1e-12) {
            true => deviation as f32,
            false => 1.0,
        };
        Some(Normalise {
            mean: moments.iter().map(|&(mean, _)| mean as f32).collect(),
            deviation: moments.iter().map(deviation).collect(),
        })
    }
}

fn channels(shape: &[u32]) -> usize {
    let channels = shape.first().map_or(1, |&size| size as usize);
    if channels > CHANNELS_MAX { 1 } else { channels }
}

/// Of bytes divided by 255.
fn byte_moments(counts: &[u64; 256]) -> (f64, f64) {
    let total = counts.iter().sum::<u64>().max(1) as f64;
    let weighted = |value: &dyn Fn(f64) -> f64| {
        counts.iter().enumerate().map(|(byte, &count)| count as f64 * value(byte as f64 / 255.0)).sum::<f64>() / total
    };
    let mean = weighted(&|value| value);
    (mean, weighted(&|value| (value - mean) * (value - mean)).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(element: Element, shape: &[u32]) -> Input {
        Input::Array { element, shape: shape.to_vec(), normalise: None }
    }

    #[test]
    fn bytes_have_the_moments_of_their_channel() {
        let mut statistics = Statistics::new(&input(Element::U8, &[2, 1, 2]));
        statistics.add(&[0, 255, 51, 51]);
        statistics.add(&[255, 0, 51, 51]);
        let Normalise { mean, deviation } = statistics.normalise().unwrap();
        assert_eq!((mean, deviation), (vec![0.5, 0.2], vec![0.5, 1.0]));
    }

    #[test]
    fn numbers_far_from_zero_keep_their_deviation() {
        let mut statistics = Statistics::new(&input(Element::F32, &[1, 4]));
        let values = [10_000.0f32, 10_001.0, 10_002.0, 10_003.0];
        for _ in 0..1000 {
            statistics.add(&values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>());
        }
        let Normalise { mean, deviation } = statistics.normalise().unwrap();
        assert_eq!(mean, [10_001.5]);
        assert!((deviation[0] - 1.25f32.sqrt()).abs() < 1e-6, "{deviation:?}");
    }

    #[test]
    fn whole_numbers_are_left_as_they_are() {
        assert_eq!(Statistics::new(&input(Element::I32, &[3])).normalise(), None);
    }
}
