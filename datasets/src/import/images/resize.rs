//! Resizing with a triangle filter: as wide as a pixel of the smaller image, so that shrinking weighs areas and growing interpolates
//! between neighbours.

use super::decode::Pixels;

/// What one pixel of the result is made of: the first source pixel, and weights that sum to one.
struct Tap {
    first: usize,
    weights: Vec<f32>,
}

fn taps(source: usize, target: usize) -> Vec<Tap> {
    let scale = source as f64 / target as f64;
    let reach = scale.max(1.0);
    let tap = |index: usize| {
        let centre = (index as f64 + 0.5) * scale;
        let first = (centre - reach).floor().max(0.0) as usize;
        let last = ((centre + reach).ceil() as usize).min(source);
        let weight = |pixel: usize| (1.0 - ((pixel as f64 + 0.5 - centre) / reach).abs()).max(0.0);
        let sum: f64 = (first..last).map(weight).sum();
        Tap { first, weights: (first..last).map(|pixel| (weight(pixel) / sum) as f32).collect() }
    };
    (0..target).map(tap).collect()
}

/// Pixels of an image of another size as `[channels, height, width]`; `channels` is 1 or 3, and colour becomes grey by BT.601.
pub(super) fn resize(pixels: &Pixels, (width, height): (usize, usize), channels: usize) -> Vec<u8> {
    let (across, down) = (taps(pixels.width, width), taps(pixels.height, height));
    let mut planes = Vec::with_capacity(channels * width * height);
    for channel in 0..channels {
        let sample = |pixel: &[u8]| match (pixel, channels) {
            (&[red, green, blue], 1) => 0.299 * f32::from(red) + 0.587 * f32::from(green) + 0.114 * f32::from(blue),
            (&[grey], _) => f32::from(grey),
            (pixel, _) => f32::from(pixel[channel]),
        };
        // Rows first, each to its new width.
        let row = |row: &[u8]| {
            let row: Vec<f32> = row.chunks_exact(pixels.channels).map(sample).collect();
            let value =
                |tap: &Tap| tap.weights.iter().zip(&row[tap.first..]).map(|(weight, value)| weight * value).sum();
            across.iter().map(value).collect::<Vec<f32>>()
        };
        let rows: Vec<Vec<f32>> = pixels.bytes.chunks_exact(pixels.width * pixels.channels).map(row).collect();
        for tap in &down {
            for x in 0..width {
                let rows = rows[tap.first..].iter();
                let value: f32 = tap.weights.iter().zip(rows).map(|(weight, row)| weight * row[x]).sum();
                planes.push(value.round().clamp(0.0, 255.0) as u8);
            }
        }
    }
    planes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grey(width: usize, bytes: &[u8]) -> Pixels {
        Pixels { width, height: bytes.len() / width, channels: 1, bytes: bytes.to_vec() }
    }

    #[test]
    fn the_same_size_changes_nothing_and_colours_become_planes() {
        let image = grey(3, &[0, 50, 100, 150, 200, 250]);
        assert_eq!(resize(&image, (3, 2), 1), image.bytes);
        assert_eq!(resize(&image, (3, 2), 3), image.bytes.repeat(3));
        let colour = Pixels { width: 2, height: 1, channels: 3, bytes: vec![1, 2, 3, 4, 5, 6] };
        assert_eq!(resize(&colour, (2, 1), 3), [1, 4, 2, 5, 3, 6]);
        let white = Pixels { width: 1, height: 1, channels: 3, bytes: vec![255; 3] };
        assert_eq!(resize(&white, (1, 1), 1), [255]);
    }

    #[test]
    fn shrinking_keeps_the_mean_and_growing_stays_between_neighbours() {
        let checks: Vec<u8> = (0..64).map(|index| if (index + index / 8) % 2 == 0 { 0 } else { 200 }).collect();
        let small = resize(&grey(8, &checks), (2, 2), 1);
        assert!(small.iter().all(|&value| (95..=105).contains(&value)), "{small:?}");
        let grown = resize(&grey(2, &[0, 100]), (4, 1), 1);
        assert_eq!(grown, [0, 25, 75, 100]);
    }
}
