//! How a camera was held: the orientation of EXIF data, by which an image is turned before anything else.

use super::decode::Pixels;

/// One of EXIF's eight orientations, as what is to be done about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Orientation {
    /// Rows become columns, before anything is mirrored.
    transposed: bool,
    mirrored_x: bool,
    mirrored_y: bool,
}

impl Orientation {
    /// Of the number in EXIF data; what is no orientation changes nothing.
    fn new(number: u16) -> Orientation {
        let (transposed, mirrored_x, mirrored_y) = match number {
            2 => (false, true, false),
            3 => (false, true, true),
            4 => (false, false, true),
            5 => (true, false, false),
            6 => (true, true, false),
            7 => (true, true, true),
            8 => (true, false, true),
            _ => (false, false, false),
        };
        Orientation { transposed, mirrored_x, mirrored_y }
    }

    /// Turns an image.
    pub(super) fn apply(self, pixels: Pixels) -> Pixels {
        if self == Orientation::default() {
            return pixels;
        }
        let Pixels { width, height, channels, bytes } = pixels;
        let (turned_width, turned_height) = if self.transposed { (height, width) } else { (width, height) };
        let mut turned = Vec::with_capacity(bytes.len());
        for y in 0..turned_height {
            for x in 0..turned_width {
                let x = if self.mirrored_x { turned_width - 1 - x } else { x };
                let y = if self.mirrored_y { turned_height - 1 - y } else { y };
                let (x, y) = if self.transposed { (y, x) } else { (x, y) };
                turned.extend_from_slice(&bytes[(y * width + x) * channels..][..channels]);
            }
        }
        Pixels { width: turned_width, height: turned_height, channels, bytes: turned }
    }
}

/// Reads the orientation from EXIF data: a TIFF header and a first directory of entries of 12 bytes.
pub(super) fn from_exif(exif: &[u8]) -> Orientation {
    const ORIENTATION: u16 = 0x0112;
    let big = exif.starts_with(b"MM");
    let u16_at = |at: usize| {
        let bytes = *exif.get(at..)?.first_chunk()?;
        Some(if big { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) })
    };
    let u32_at = |at: usize| {
        let bytes = *exif.get(at..)?.first_chunk()?;
        Some(if big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    };
    let find = || {
        let directory = usize::try_from(u32_at(4)?).ok()?;
        let entries = usize::from(u16_at(directory)?);
        let mut places = (0..entries).map(|entry| directory + 2 + 12 * entry);
        let place = places.find(|&place| u16_at(place) == Some(ORIENTATION))?;
        u16_at(place + 8)
    };
    Orientation::new(find().unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turned(number: u16) -> (usize, Vec<u8>) {
        let pixels = Pixels { width: 3, height: 2, channels: 1, bytes: vec![1, 2, 3, 4, 5, 6] };
        let turned = Orientation::new(number).apply(pixels);
        (turned.width, turned.bytes)
    }

    #[test]
    fn each_orientation_is_turned_upright() {
        assert_eq!(turned(1), (3, vec![1, 2, 3, 4, 5, 6]));
        assert_eq!(turned(2), (3, vec![3, 2, 1, 6, 5, 4]));
        assert_eq!(turned(3), (3, vec![6, 5, 4, 3, 2, 1]));
        assert_eq!(turned(4), (3, vec![4, 5, 6, 1, 2, 3]));
        assert_eq!(turned(5), (2, vec![1, 4, 2, 5, 3, 6]));
        assert_eq!(turned(6), (2, vec![4, 1, 5, 2, 6, 3]), "a quarter turn clockwise");
        assert_eq!(turned(7), (2, vec![6, 3, 5, 2, 4, 1]));
        assert_eq!(turned(8), (2, vec![3, 6, 2, 5, 1, 4]), "a quarter turn counter-clockwise");
    }

    #[test]
    fn exif_data_of_both_byte_orders_is_read_and_damage_changes_nothing() {
        let little = b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0";
        let big = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0";
        assert_eq!(from_exif(little), Orientation::new(6));
        assert_eq!(from_exif(big), Orientation::new(6));
        for cut in 0..18 {
            assert_eq!(from_exif(&little[..cut]), Orientation::default(), "{cut}");
        }
        assert_eq!(from_exif(b"II*\0\xff\xff\xff\xff"), Orientation::default());
    }
}
