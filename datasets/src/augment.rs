//! Images changed at random, so that a model sees each in many variants. What is drawn follows from a seed for each sample
//! and epoch: whoever computes a sample, and however often, sees the same pixels.

use omnilearn_wire::sampling::SplitMix64;

use crate::form::{Element, Form, Input};

/// Mirrors and shifts images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Augmenter {
    channels: usize,
    height: usize,
    width: usize,
    element_bytes: usize,
    flip: bool,
    padding: u32,
}

/// What is done to one image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Draw {
    mirrored: bool,
    /// Where the crop begins in the padded image.
    top: usize,
    left: usize,
}

impl Augmenter {
    /// For images of this form: mirrored left to right half of the time if `flip`; surrounded by `padding` black pixels, from which
    /// a window of the old size is cut. None if samples are no images `[channels, height, width]` or the padding is no smaller
    /// than they are.
    pub fn new(form: &Form, flip: bool, padding: u32) -> Option<Augmenter> {
        let [channels, height, width] = form.image()?;
        let Input::Array { element, .. } = &form.input else { return None };
        if padding >= height.min(width) || *element == Element::I32 {
            return None;
        }
        let (channels, height, width) = (channels as usize, height as usize, width as usize);
        Some(Augmenter { channels, height, width, element_bytes: element.bytes(), flip, padding })
    }

    fn draw(&self, seed: u64) -> Draw {
        let mut generator = SplitMix64::new(seed);
        let places = 2 * u64::from(self.padding) + 1;
        let (top, left) = (generator.below(places) as usize, generator.below(places) as usize);
        Draw { mirrored: generator.below(2) == 1 && self.flip, top, left }
    }

    /// Appends the changed image to `out`. `image` is what a record holds, before it is normalised.
    pub fn apply(&self, seed: u64, image: &[u8], out: &mut Vec<u8>) {
        self.change(self.draw(seed), image, out);
    }

    fn change(&self, Draw { mirrored, top, left }: Draw, image: &[u8], out: &mut Vec<u8>) {
        let Augmenter { channels, height, width, element_bytes, padding, .. } = *self;
        let (begin, padding) = (out.len(), padding as usize);
        out.resize(begin + image.len(), 0);
        let out = &mut out[begin..];
        let (row_bytes, plane) = (width * element_bytes, height * width * element_bytes);
        // Pixel x of a row comes from pixel x + left - padding of the source, where there is one.
        let (first, last) = (padding.saturating_sub(left), width.min(width + padding - left));
        for channel in 0..channels {
            for row in 0..height {
                let Some(source_row) = (row + top).checked_sub(padding).filter(|&row| row < height) else { continue };
                let source = channel * plane + source_row * row_bytes;
                let target = channel * plane + row * row_bytes;
                let source_begin = source + (first + left - padding) * element_bytes;
                let bytes = (last - first) * element_bytes;
                out[target + first * element_bytes..][..bytes].copy_from_slice(&image[source_begin..][..bytes]);
                if mirrored {
                    mirror(&mut out[target..][..row_bytes], element_bytes);
                }
            }
        }
    }
}

/// Reverses the pixels of a row.
fn mirror(row: &mut [u8], element_bytes: usize) {
    row.reverse();
    // The bytes within each element were reversed too.
    row.chunks_exact_mut(element_bytes).for_each(<[u8]>::reverse);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::form::Target;

    fn form(element: Element, shape: &[u32]) -> Form {
        let input = Input::Array { element, shape: shape.to_vec(), normalise: None };
        Form { input, target: Target::Classes { count: 2 }, grouped: false }
    }

    fn changed(augmenter: &Augmenter, draw: Draw, image: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        augmenter.change(draw, image, &mut out);
        out
    }

    #[test]
    fn a_flip_twice_is_the_identity() {
        for element in [Element::U8, Element::F32] {
            let augmenter = Augmenter::new(&form(element, &[2, 3, 5]), true, 2).unwrap();
            let image: Vec<u8> = (0..(30 * element.bytes()) as u8).collect();
            let flip = Draw { mirrored: true, top: 2, left: 2 };
            let once = changed(&augmenter, flip, &image);
            assert_ne!(once, image);
            assert_eq!(once[..element.bytes()], image[4 * element.bytes()..5 * element.bytes()], "elements stay whole");
            assert_eq!(changed(&augmenter, flip, &once), image);
        }
    }

    #[test]
    fn a_crop_is_a_shifted_window_with_black_where_there_was_nothing() {
        let augmenter = Augmenter::new(&form(Element::U8, &[1, 3, 3]), false, 1).unwrap();
        let image = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        let crop = |top, left| changed(&augmenter, Draw { mirrored: false, top, left }, &image);
        assert_eq!(crop(1, 1), image);
        assert_eq!(crop(0, 0), [0, 0, 0, 0, 1, 2, 0, 4, 5]);
        assert_eq!(crop(2, 1), [4, 5, 6, 7, 8, 9, 0, 0, 0]);
        assert_eq!(crop(1, 2), [2, 3, 0, 5, 6, 0, 8, 9, 0]);
    }

    #[test]
    fn the_same_seed_gives_the_same_bytes_and_others_give_all_variants() {
        let augmenter = Augmenter::new(&form(Element::U8, &[1, 4, 4]), true, 1).unwrap();
        let image: Vec<u8> = (1..=16).collect();
        let with = |seed| {
            let mut out = Vec::new();
            augmenter.apply(seed, &image, &mut out);
            out
        };
        assert_eq!(with(7), with(7));
        let variants: std::collections::HashSet<Vec<u8>> = (0..2000).map(with).collect();
        assert_eq!(variants.len(), 18, "two ways round and nine windows");
    }

    #[test]
    fn only_images_are_changed_and_padding_is_smaller_than_they_are() {
        assert!(Augmenter::new(&form(Element::U8, &[784]), true, 0).is_none());
        assert!(Augmenter::new(&form(Element::U8, &[1, 4, 6]), true, 4).is_none());
        assert!(Augmenter::new(&form(Element::U8, &[1, 4, 6]), true, 3).is_some());
        let tokens = Form {
            input: Input::Tokens { element: Element::U8, vocabulary: 256 },
            target: Target::None {},
            grouped: false,
        };
        assert!(Augmenter::new(&tokens, true, 0).is_none());
    }
}
