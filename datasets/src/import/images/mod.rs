//! Image folders: PNG and JPEG files in a folder for each class, in `train/` and `test/` or drawn. Each is decoded once, turned as
//! its EXIF data says, and resized.

mod decode;
mod orientation;
mod resize;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use super::choose::{Draw, has_ending};
use super::{ImageOptions, ImportError, Job, check_record};
use crate::form::{Element, Form, Input, Target};
use crate::pack::{Names, Packed, Packer, RecordTarget, Which};

/// Names of folders that hold the classes' folders of one split.
const SPLITS: [(&str, Which); 4] =
    [("train", Which::Train), ("test", Which::Test), ("val", Which::Test), ("validation", Which::Test)];
/// Images that are decoded before they are written, all cores at once.
const LOT: usize = 256;
/// Folders within folders of a class.
const DEPTH_MAX: usize = 8;

/// One file, its class and where it goes.
struct Entry {
    path: PathBuf,
    class: u32,
    which: Which,
}

pub(super) fn import(job: &mut Job<'_>, source: &Path) -> Result<Packed, ImportError> {
    let ImageOptions { size: (width, height), grey } = job.options.images;
    let shape = [if grey { 1 } else { 3 }, u64::from(height), u64::from(width)];
    let shape = check_record(&shape, 1).map_err(|problem| ImportError::Options(format!("--size: {problem}")))?;
    let (entries, classes) = list(job, source)?;
    let form = Form {
        input: Input::Array { element: Element::U8, shape, normalise: None },
        target: Target::Classes { count: classes.len() as u32 },
        grouped: false,
    };
    let mut packer = job.library.packer(form, job.normalising())?;
    for (lot, files) in entries.chunks(LOT).enumerate() {
        let options = job.options.images;
        let decoded: Vec<Result<Vec<u8>, String>> =
            files.par_iter().map(|entry| pixels(&entry.path, options)).collect();
        for (entry, pixels) in files.iter().zip(decoded) {
            add(job, &mut packer, entry, pixels)?;
        }
        job.progress((lot * LOT + files.len()) as u64, Some(entries.len() as u64), "images");
    }
    Ok(packer.finish(job.name, Names { classes, groups: Vec::new() })?)
}

fn add(
    job: &mut Job<'_>,
    packer: &mut Packer,
    entry: &Entry,
    pixels: Result<Vec<u8>, String>,
) -> Result<(), ImportError> {
    match pixels {
        Ok(pixels) => Ok(packer.add(entry.which, &pixels, RecordTarget::Class(entry.class), 0)?),
        Err(problem) => {
            let advice = if job.options.skip_damaged { "" } else { "; --skip-damaged leaves such files out" };
            let error = ImportError::damaged(&entry.path, format!("{problem}{advice}"));
            job.skipped.skip(error, job.options.skip_damaged)
        }
    }
}

/// Every image with its class and split, in the order of their paths, and the classes' names.
fn list(job: &mut Job<'_>, source: &Path) -> Result<(Vec<Entry>, Vec<String>), ImportError> {
    let top = folders(source)?;
    let named = |name: &str| SPLITS.iter().find(|(split, _)| *split == name).map(|(_, which)| *which);
    let is_split = top.iter().any(|(name, _)| name == "train") && top.iter().all(|(name, _)| named(name).is_some());
    let parts: Vec<(Option<Which>, PathBuf)> = match is_split {
        true => top.into_iter().map(|(name, path)| (named(&name), path)).collect(),
        false => vec![(None, source.to_owned())],
    };
    let has_test = parts.iter().any(|(which, _)| *which == Some(Which::Test));
    let mut files: BTreeMap<String, Vec<(Option<Which>, PathBuf)>> = BTreeMap::new();
    let mut others = 0;
    for (which, part) in parts {
        let which = which.filter(|_| has_test); // a lone `train` is drawn from
        for (class, folder) in folders(&part)? {
            let mut found = Vec::new();
            collect(&folder, DEPTH_MAX, &mut found, &mut others)?;
            found.sort_unstable();
            files.entry(class).or_default().extend(found.into_iter().map(|path| (which, path)));
        }
    }
    files.retain(|_, files| !files.is_empty());
    if files.is_empty() {
        let problem = "no PNG or JPEG files in folders named as their classes, such as cat/1.png or train/cat/1.png";
        return Err(ImportError::damaged(source, problem));
    }
    if others > 0 {
        job.notes.push(format!("{others} files that are neither PNG nor JPEG were left out"));
    }
    let classes: Vec<String> = files.keys().cloned().collect();
    let mut entries = Vec::new();
    for (class, files) in (0..).zip(files.into_values()) {
        let mut draw = Draw::new(job.options.seed, class.into(), files.len() as u64, job.options.test_part);
        entries.extend(files.into_iter().map(|(which, path)| {
            let which = which.unwrap_or_else(|| draw.next());
            Entry { path, class, which }
        }));
    }
    Ok((entries, classes))
}

/// The folders in a folder, by name.
fn folders(folder: &Path) -> Result<Vec<(String, PathBuf)>, ImportError> {
    let entries = fs::read_dir(folder).map_err(ImportError::io("read", folder))?;
    let mut found: Vec<(String, PathBuf)> = entries
        .flatten()
        .map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path()))
        .filter(|(name, path)| !name.starts_with('.') && path.is_dir())
        .collect();
    found.sort_unstable();
    Ok(found)
}

/// The images in a folder and those below it; hidden files are none.
fn collect(folder: &Path, depth: usize, found: &mut Vec<PathBuf>, others: &mut u64) -> Result<(), ImportError> {
    for entry in fs::read_dir(folder).map_err(ImportError::io("read", folder))?.flatten() {
        let path = entry.path();
        if entry.file_name().to_string_lossy().starts_with('.') {
            continue;
        }
        if path.is_dir() {
            if depth > 0 {
                collect(&path, depth - 1, found, others)?;
            }
        } else if has_ending(&path, &["png", "jpg", "jpeg"]) {
            found.push(path);
        } else {
            *others += 1;
        }
    }
    Ok(())
}

/// Pixels of an image `[channels, height, width]`.
fn pixels(path: &Path, ImageOptions { size: (width, height), grey }: ImageOptions) -> Result<Vec<u8>, String> {
    let image = decode::decode(path)?;
    Ok(resize::resize(&image, (width as usize, height as usize), if grey { 1 } else { 3 }))
}

#[cfg(test)]
mod tests;
