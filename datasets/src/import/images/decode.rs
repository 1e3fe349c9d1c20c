//! PNG and JPEG files to pixels, within bounds: a small file can claim to be huge.

use std::fs::File;
use std::io::Read;
use std::panic::catch_unwind;
use std::path::Path;

use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;
use zune_png::PngDecoder;

use super::orientation::{self, Orientation};

/// Longest file that is read.
const FILE_BYTES_MAX: u64 = 256 << 20;
/// Longest side of an image, in pixels.
const SIDE_MAX: usize = 1 << 15;
/// Most pixels of an image.
const PIXELS_MAX: usize = 1 << 27;

/// Decoded pixels, row by row, with a pixel's channels together.
pub(super) struct Pixels {
    pub(super) width: usize,
    pub(super) height: usize,
    /// 1 or 3.
    pub(super) channels: usize,
    pub(super) bytes: Vec<u8>,
}

/// Reads a file. Whether it is PNG or JPEG is seen from its content. Transparency is left out.
///
/// # Errors
/// What is wrong with the file.
pub(super) fn decode(path: &Path) -> Result<Pixels, String> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|cause| cause.to_string())?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|cause| cause.to_string())?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("longer than {FILE_BYTES_MAX} bytes"));
    }
    // The decoders are others' code, and a file that makes one panic is a damaged file.
    catch_unwind(|| decode_bytes(&bytes)).unwrap_or_else(|_| Err("the decoder failed on it".to_owned()))
}

fn decode_bytes(bytes: &[u8]) -> Result<Pixels, String> {
    if bytes.starts_with(b"\x89PNG\r\n\x1a\n") {
        png(bytes)
    } else if bytes.starts_with(&[0xff, 0xd8]) {
        jpeg(bytes)
    } else {
        Err("neither PNG nor JPEG inside".to_owned())
    }
}

fn options() -> DecoderOptions {
    DecoderOptions::new_safe()
        .set_max_width(SIDE_MAX)
        .set_max_height(SIDE_MAX)
        .set_strict_mode(true)
        .inflate_set_limit(8 * PIXELS_MAX)
        .inflate_set_confirm_adler(true)
        .png_set_confirm_crc(true)
        .png_set_strip_to_8bit(true)
}

fn check_size(width: usize, height: usize) -> Result<(), String> {
    match width.checked_mul(height) {
        Some(1..=PIXELS_MAX) => Ok(()),
        _ => Err(format!("{width} by {height} pixels are none or too many")),
    }
}

fn png(bytes: &[u8]) -> Result<Pixels, String> {
    let mut decoder = PngDecoder::new_with_options(ZCursor::new(bytes), options());
    decoder.decode_headers().map_err(|error| format!("{error:?}"))?;
    let (width, height) = decoder.dimensions().ok_or("no size in its header")?;
    check_size(width, height)?;
    let bytes = decoder.decode_raw().map_err(|error| format!("{error:?}"))?;
    let found = decoder.colorspace().map_or(0, |space| space.num_components());
    without_alpha(width, height, found, bytes)
}

fn jpeg(bytes: &[u8]) -> Result<Pixels, String> {
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options());
    decoder.decode_headers().map_err(|error| format!("{error:?}"))?;
    let info = decoder.info().ok_or("no size in its header")?;
    let (width, height) = (usize::from(info.width), usize::from(info.height));
    check_size(width, height)?;
    let grey = decoder.input_colorspace() == Some(ColorSpace::Luma);
    let wanted = if grey { ColorSpace::Luma } else { ColorSpace::RGB };
    decoder.set_options(options().jpeg_set_out_colorspace(wanted));
    let bytes = decoder.decode().map_err(|error| format!("{error:?}"))?;
    let turned = decoder.exif().map_or(Orientation::default(), |exif| orientation::from_exif(exif));
    let pixels = without_alpha(width, height, wanted.num_components(), bytes)?;
    Ok(turned.apply(pixels))
}

/// Keeps one channel of one or two, and three of three or four.
fn without_alpha(width: usize, height: usize, found: usize, bytes: Vec<u8>) -> Result<Pixels, String> {
    let channels = match found {
        1 | 2 => 1,
        3 | 4 => 3,
        _ => return Err(format!("{found} channels")),
    };
    if bytes.len() != width * height * found {
        return Err(format!("{} bytes of pixels instead of {}", bytes.len(), width * height * found));
    }
    let bytes = match found == channels {
        true => bytes,
        false => bytes.chunks_exact(found).flat_map(|pixel| pixel[..channels].iter().copied()).collect(),
    };
    Ok(Pixels { width, height, channels, bytes })
}
