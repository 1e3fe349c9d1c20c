//! Windows of consecutive rows, each key's by itself.

use std::collections::{HashMap, VecDeque};

use super::super::{ImportError, Options};
use super::table::{Columns, Row};
use crate::pack::Which;

/// Most memory for the rows that windows are made of: a window for each key.
const BYTES_MAX: u64 = 1 << 30;

/// The rows of one key so far.
struct Series {
    /// Rows in the first part, from which windows are to learn from.
    train_rows: u64,
    rows: u64,
    seen: u64,
    /// The last rows, at most as many as a window has.
    recent: VecDeque<Vec<f32>>,
}

/// Makes windows of rows.
pub(super) struct Windows {
    length: u64,
    stride: u64,
    /// Whether what is to be predicted is in the row after the window.
    ahead: bool,
    series: HashMap<String, Series>,
}

impl Windows {
    pub(super) fn new(
        length: u32,
        columns: &Columns,
        rows: &HashMap<String, u64>,
        options: &Options,
    ) -> Result<Windows, ImportError> {
        let bytes = rows.len() as u64 * u64::from(length) * columns.inputs.len() as u64 * 4;
        if bytes > BYTES_MAX {
            let problem = format!("windows of {length} rows for {} keys take more than {BYTES_MAX} bytes", rows.len());
            return Err(ImportError::Options(problem));
        }
        let series = rows.iter().map(|(key, &rows)| {
            let train_rows = rows - (rows as f64 * options.test_part).round() as u64;
            (key.clone(), Series { train_rows, rows, seen: 0, recent: VecDeque::new() })
        });
        Ok(Windows {
            length: length.into(),
            stride: options.csv.stride.into(),
            ahead: !columns.targets.is_empty(),
            series: series.collect(),
        })
    }

    /// Takes a row. Says which split a window that is complete with it belongs to, and puts the window into `record` as
    /// `[columns, length]`. None for a row that was not there before.
    pub(super) fn take(&mut self, row: &Row, record: &mut Vec<u8>) -> Option<Option<Which>> {
        let (length, ahead) = (self.length, u64::from(self.ahead));
        let series = self.series.get_mut(&row.key).filter(|series| series.seen < series.rows)?;
        if series.seen == series.train_rows {
            series.recent.clear(); // windows for testing begin after the border
        }
        let (begin, which) = match series.seen < series.train_rows {
            true => (0, Which::Train),
            false => (series.train_rows, Which::Test),
        };
        if self.ahead && series.recent.len() as u64 == length {
            encode(&series.recent, record);
        }
        if series.recent.len() as u64 == length {
            series.recent.pop_front();
        }
        series.recent.push_back(row.inputs.clone());
        series.seen += 1;
        // Rows of this part that windows could begin at, up to the one that would be complete now.
        let first = (series.seen - begin).checked_sub(length + ahead);
        if !first.is_some_and(|first| first.is_multiple_of(self.stride)) {
            return Some(None);
        }
        if !self.ahead {
            encode(&series.recent, record);
        }
        Some(Some(which))
    }
}

/// Rows to `[columns, length]`.
fn encode(rows: &VecDeque<Vec<f32>>, record: &mut Vec<u8>) {
    record.clear();
    let columns = rows.front().map_or(0, Vec::len);
    for column in 0..columns {
        record.extend(rows.iter().flat_map(|row| row[column].to_le_bytes()));
    }
}
