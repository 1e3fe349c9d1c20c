//! Tables and series: rows as samples, or windows of consecutive rows. The file is read twice and never held: first to count rows,
//! classes and keys, then to write.
//!
//! Rows for testing are drawn; windows for testing are the last part of each key's rows, and none reaches over the border. Values are
//! normalised by the training samples' mean and deviation, column by column.

mod table;
mod windows;

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use self::table::{Columns, Row, Table};
use self::windows::Windows;
use super::choose::Draw;
use super::{ImportError, Job, Numbering, check_record};
use crate::form::{CLASSES_MAX, Element, Form, Input, SAMPLES_MAX, Target};
use crate::pack::{Names, Packed, Packer, RecordTarget};

/// Rows between two reports of progress.
const REPORT_EVERY: u64 = 10_000;

/// What the first pass finds.
struct Survey {
    rows: u64,
    /// Rows of each key, or of all under an empty one.
    by_key: HashMap<String, u64>,
    classes: Numbering,
    groups: Numbering,
}

pub(super) fn import(job: &mut Job<'_>, source: &Path) -> Result<Packed, ImportError> {
    let options = &job.options.csv;
    if !options.targets.is_empty() && options.label.is_some() {
        let problem = "--target names numbers to predict and --label a class; give one of them";
        return Err(ImportError::Options(problem.to_owned()));
    }
    if options.length == Some(0) || options.stride == 0 {
        return Err(ImportError::Options("--length and --stride are at least 1".to_owned()));
    }
    let columns = Columns::choose(source, options)?;
    let survey = survey(job, source, &columns)?;
    let inputs = columns.inputs.len() as u64;
    let shape = match options.length {
        Some(length) => vec![inputs, length.into()],
        None => vec![inputs],
    };
    let shape = check_record(&shape, 4).map_err(|problem| ImportError::Options(format!("--length: {problem}")))?;
    let target = if !columns.targets.is_empty() {
        Target::Values { shape: vec![columns.targets.len() as u32] }
    } else if columns.label.is_some() {
        Target::Classes { count: survey.classes.names.len() as u32 }
    } else {
        Target::None {}
    };
    let input = Input::Array { element: Element::F32, shape, normalise: None };
    let form = Form { input, target, grouped: columns.key.is_some() };
    let mut packer = job.library.packer(form, job.normalising())?;
    write(job, source, &columns, &survey, &mut packer)?;
    job.notes.push(format!("inputs are the columns {}", columns.input_names().join(", ")));
    Ok(packer.finish(job.name, Names { classes: survey.classes.names, groups: survey.groups.names })?)
}

/// Each row of the table that is whole. One that is not ends the import, or is counted in the second pass.
fn each_row(
    job: &mut Job<'_>,
    source: &Path,
    columns: &Columns,
    (count_skipped, total): (bool, Option<u64>),
    mut act: impl FnMut(&mut Job<'_>, &Row) -> Result<(), ImportError>,
) -> Result<(), ImportError> {
    let mut table = Table::open(source, &job.options.csv)?;
    let (mut row, mut done) = (Row::default(), 0u64);
    loop {
        match table.next(columns, &mut row) {
            Ok(true) => act(job, &row)?,
            Ok(false) => return Ok(()),
            Err(error @ ImportError::Row { .. }) if job.options.skip_damaged => {
                if count_skipped {
                    job.skipped.skip(error, true)?;
                }
            }
            Err(error) => return Err(error),
        }
        done += 1;
        if done.is_multiple_of(REPORT_EVERY) {
            job.progress(done, total, if total.is_some() { "rows" } else { "rows counted" });
        }
    }
}

fn survey(job: &mut Job<'_>, source: &Path, columns: &Columns) -> Result<Survey, ImportError> {
    let (mut rows, mut by_key, mut labels) = (0, HashMap::new(), BTreeSet::new());
    each_row(job, source, columns, (false, None), |_, row| {
        rows += 1;
        match by_key.get_mut(&row.key) {
            Some(rows) => *rows += 1,
            None => drop(by_key.insert(row.key.clone(), 1u64)),
        }
        if !labels.contains(&row.label) {
            labels.insert(row.label.clone());
        }
        for (what, count) in [("keys", by_key.len()), ("classes", labels.len())] {
            if count > CLASSES_MAX as usize {
                return Err(ImportError::damaged(source, format!("more than {CLASSES_MAX} {what}")));
            }
        }
        Ok(())
    })?;
    if rows == 0 || rows > SAMPLES_MAX {
        return Err(ImportError::damaged(source, format!("{rows} rows, 1 to {SAMPLES_MAX} are possible")));
    }
    let classes = if columns.label.is_some() { in_order(labels) } else { Numbering::default() };
    let groups = match columns.key {
        Some(_) => Numbering::sorted(by_key.keys().cloned()),
        None => Numbering::default(),
    };
    Ok(Survey { rows, by_key, classes, groups })
}

/// Class names in the order of their numbers, if that is what they are.
fn in_order(labels: BTreeSet<String>) -> Numbering {
    let numbers: Option<Vec<i64>> = labels.iter().map(|label| label.parse().ok()).collect();
    let mut sorted = Numbering::sorted(labels);
    if let Some(numbers) = numbers {
        let mut pairs: Vec<(i64, String)> = numbers.into_iter().zip(sorted.names).collect();
        pairs.sort_unstable();
        sorted.names = pairs.into_iter().map(|(_, name)| name).collect();
        sorted.numbers = sorted.names.iter().cloned().zip(0..).collect();
    }
    sorted
}

fn write(
    job: &mut Job<'_>,
    source: &Path,
    columns: &Columns,
    survey: &Survey,
    packer: &mut Packer,
) -> Result<(), ImportError> {
    let options = job.options;
    let mut draw = Draw::new(options.seed, 0, survey.rows, options.test_part);
    let mut windows = match options.csv.length {
        Some(length) => Some(Windows::new(length, columns, &survey.by_key, options)?),
        None => None,
    };
    let mut record = Vec::new();
    let changed = || ImportError::damaged(source, "was changed while it was read");
    let class = |row: &Row| survey.classes.numbers.get(&row.label).copied().ok_or_else(changed);
    each_row(job, source, columns, (true, Some(survey.rows)), |_, row| {
        let group = match columns.key {
            Some(_) => survey.groups.numbers.get(&row.key).copied().ok_or_else(changed)?,
            None => 0,
        };
        let target = match (columns.label, columns.targets.is_empty()) {
            (Some(_), _) => RecordTarget::Class(class(row)?),
            (None, false) => RecordTarget::Values(&row.targets),
            (None, true) => RecordTarget::None,
        };
        match &mut windows {
            None => {
                record.clear();
                record.extend(row.inputs.iter().flat_map(|value| value.to_le_bytes()));
                packer.add(draw.next(), &record, target, group)?;
            }
            Some(windows) => {
                if let Some(which) = windows.take(row, &mut record).ok_or_else(changed)? {
                    packer.add(which, &record, target, group)?;
                }
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests;
