//! A table's columns by name, and its rows as numbers.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use ::csv::{ReaderBuilder, StringRecord, Trim};
use flate2::read::MultiGzDecoder;

use super::super::choose::has_ending;
use super::super::{CsvOptions, ImportError};

/// Which columns are what, by their number.
pub(super) struct Columns {
    pub(super) inputs: Vec<usize>,
    pub(super) targets: Vec<usize>,
    pub(super) label: Option<usize>,
    pub(super) key: Option<usize>,
    names: Vec<String>,
}

/// One row.
#[derive(Debug, Default)]
pub(super) struct Row {
    pub(super) inputs: Vec<f32>,
    pub(super) targets: Vec<f32>,
    /// Empty where there is none.
    pub(super) label: String,
    /// Empty where there is none.
    pub(super) key: String,
}

/// A table that is read from its first row on.
pub(super) struct Table {
    path: PathBuf,
    reader: ::csv::Reader<Box<dyn Read>>,
    record: StringRecord,
}

impl Table {
    pub(super) fn open(path: &Path, options: &CsvOptions) -> Result<Table, ImportError> {
        let file = BufReader::with_capacity(1 << 18, File::open(path).map_err(ImportError::io("open", path))?);
        let packed = has_ending(path, &["gz"]);
        let reader: Box<dyn Read> = if packed { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) };
        let is_tabbed = has_ending(path, &["tsv", "tsv.gz"]) && options.delimiter == b',';
        let delimiter = if is_tabbed { b'\t' } else { options.delimiter };
        let reader = ReaderBuilder::new().delimiter(delimiter).trim(Trim::All).from_reader(reader);
        Ok(Table { path: path.to_owned(), reader, record: StringRecord::new() })
    }

    fn wrong(&self, error: &::csv::Error) -> ImportError {
        match (error.kind(), error.position()) {
            (::csv::ErrorKind::Io(cause), _) => {
                ImportError::io("read", &self.path)(std::io::Error::new(cause.kind(), cause.to_string()))
            }
            (_, Some(position)) => {
                ImportError::Row { path: self.path.clone(), line: position.line(), problem: error.to_string() }
            }
            _ => ImportError::damaged(&self.path, error.to_string()),
        }
    }

    fn names(&mut self) -> Result<Vec<String>, ImportError> {
        match self.reader.headers() {
            Ok(names) => Ok(names.iter().map(str::to_owned).collect()),
            Err(error) => Err(self.wrong(&error)),
        }
    }

    /// Reads the next row; false at the end.
    pub(super) fn next(&mut self, columns: &Columns, row: &mut Row) -> Result<bool, ImportError> {
        match self.reader.read_record(&mut self.record) {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(error) => return Err(self.wrong(&error)),
        }
        let line = self.record.position().map_or(0, ::csv::Position::line);
        let text = |column: usize| self.record.get(column).unwrap_or_default();
        let wrong = |problem: String| ImportError::Row { path: self.path.clone(), line, problem };
        let number = |column: usize| {
            let text = text(column);
            let number = text.parse::<f32>().ok().filter(|number| number.is_finite());
            number.ok_or_else(|| wrong(format!("`{text}` in column `{}` is no number", columns.names[column])))
        };
        row.inputs.clear();
        row.targets.clear();
        for (numbers, columns) in [(&mut row.inputs, &columns.inputs), (&mut row.targets, &columns.targets)] {
            for &column in columns {
                numbers.push(number(column)?);
            }
        }
        for (name, column) in [(&mut row.label, columns.label), (&mut row.key, columns.key)] {
            name.clear();
            if let Some(column) = column {
                name.push_str(text(column));
                if name.is_empty() {
                    return Err(wrong(format!("nothing in column `{}`", columns.names[column])));
                }
            }
        }
        Ok(true)
    }
}

impl Columns {
    /// Finds the columns that the options name.
    pub(super) fn choose(path: &Path, options: &CsvOptions) -> Result<Columns, ImportError> {
        let mut table = Table::open(path, options)?;
        let names = table.names()?;
        let find = |name: &String| {
            names.iter().position(|known| known == name).ok_or_else(|| {
                let known = names.iter().take(50).map(String::as_str).collect::<Vec<_>>().join(", ");
                ImportError::Options(format!("{} has no column `{name}`; it has {known}", path.display()))
            })
        };
        let all = |names: &[String]| names.iter().map(find).collect::<Result<Vec<usize>, ImportError>>();
        let targets = all(&options.targets)?;
        let label = options.label.as_ref().map(find).transpose()?;
        let key = options.key.as_ref().map(find).transpose()?;
        let mut inputs = all(&options.columns)?;
        if options.columns.is_empty() {
            let mut first = StringRecord::new();
            let read = table.reader.read_record(&mut first);
            read.map_err(|error| table.wrong(&error))?;
            let is_other = |column: usize| targets.contains(&column) || label == Some(column) || key == Some(column);
            let is_number = |column: usize| first.get(column).is_some_and(|text| text.parse::<f32>().is_ok());
            inputs = (0..names.len()).filter(|&column| !is_other(column) && is_number(column)).collect();
            // In windows, the series to predict is the first to look back at.
            if inputs.is_empty() && options.length.is_some() {
                inputs = targets.clone();
            }
        }
        if inputs.is_empty() {
            let problem = format!("{} has no column of numbers for inputs; name some with --columns", path.display());
            return Err(ImportError::Options(problem));
        }
        Ok(Columns { inputs, targets, label, key, names })
    }

    /// Names of the inputs.
    pub(super) fn input_names(&self) -> Vec<&str> {
        self.inputs.iter().map(|&column| self.names[column].as_str()).collect()
    }
}
