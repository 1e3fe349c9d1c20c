//! CSV files: those that simulator and hub write are read by the names of their columns, and rows are written.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, bail};

use super::outcome::Outcome;

/// A CSV file in memory.
#[derive(Debug)]
pub(crate) struct Csv {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Csv {
    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read or a line has another number of cells than the header.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("reading {}", path.display()))
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let mut lines = text.lines().filter(|line| !line.is_empty()).map(cells);
        let header = lines.next().context("there is no header")?;
        let rows: Vec<Vec<String>> = lines.collect();
        if let Some(place) = rows.iter().position(|row| row.len() != header.len()) {
            bail!("line {} has {} cells, the header {}", place + 2, rows[place].len(), header.len());
        }
        Ok(Self { header, rows })
    }

    /// The numbers of some columns, row by row; rows in which one of them is no number are left out.
    ///
    /// # Errors
    /// When there is no such column.
    pub(crate) fn numbers<const COLUMNS: usize>(&self, names: [&str; COLUMNS]) -> anyhow::Result<Vec<[f64; COLUMNS]>> {
        let mut places = [0; COLUMNS];
        for (place, name) in places.iter_mut().zip(names) {
            *place = self
                .header
                .iter()
                .position(|column| column == name)
                .with_context(|| format!("there is no column `{name}` among {}", self.header.join(", ")))?;
        }
        let row = |row: &Vec<String>| {
            let mut numbers = [0.0; COLUMNS];
            for (number, place) in numbers.iter_mut().zip(places) {
                *number = row[place].parse().ok()?;
            }
            Some(numbers)
        };
        Ok(self.rows.iter().filter_map(row).collect())
    }
}

/// The cells of a line, of which some may be quoted.
fn cells(line: &str) -> Vec<String> {
    let (mut cells, mut cell, mut quoted) = (Vec::new(), String::new(), false);
    let mut letters = line.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' if quoted && letters.peek() == Some(&'"') => {
                cell.push('"');
                letters.next();
            }
            '"' => quoted = !quoted,
            ',' if !quoted => cells.push(std::mem::take(&mut cell)),
            letter => cell.push(letter),
        }
    }
    cells.push(cell);
    cells
}

/// All figures of all rows as CSV.
pub(crate) fn of_outcomes(outcomes: &[Outcome]) -> String {
    let names: BTreeSet<&String> = outcomes.iter().flat_map(|outcome| outcome.figures.keys()).collect();
    let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    let mut text = "case,model,hl,agents,mode,policy".to_owned();
    for name in &names {
        text.push_str(&format!(",{name}"));
    }
    text.push_str(",skipped\n");
    for outcome in outcomes {
        let key = &outcome.key;
        text.push_str(&format!(
            "{},{},{},{},{},{}",
            quoted(&key.case),
            key.model,
            key.hl,
            key.agents,
            key.mode,
            key.policy
        ));
        for name in &names {
            text.push_str(&outcome.figure(name).map_or_else(|| ",".to_owned(), |value| format!(",{value}")));
        }
        text.push_str(&format!(",{}\n", quoted(outcome.skipped.as_deref().unwrap_or_default())));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::outcome::tests::outcome;
    use super::*;

    #[test]
    fn columns_are_found_by_name_and_quotes_are_respected() {
        let csv = Csv::parse("version,reason,accuracy\n1,\"a, \"\"b\"\"\",0.5\n2,c,\n3,d,0.75\n").unwrap();
        assert_eq!(csv.numbers(["accuracy", "version"]).unwrap(), [[0.5, 1.0], [0.75, 3.0]]);
        assert!(csv.numbers(["loss"]).unwrap_err().to_string().contains("`loss` among version, reason, accuracy"));
    }

    #[test]
    fn a_line_of_another_length_is_named() {
        assert!(Csv::parse("a,b\n1,2\n3\n").unwrap_err().to_string().contains("line 3 has 1 cells"));
        assert!(Csv::parse("").is_err());
    }

    #[test]
    fn every_figure_of_any_row_has_a_column() {
        let mut rows = [outcome(1, "uniform", &[("epoch_s", 1.5)]), outcome(8, "deadline", &[("accuracy", 0.9)])];
        rows[1].skipped = Some("no \"data\"".to_owned());
        assert_eq!(
            of_outcomes(&rows),
            "case,model,hl,agents,mode,policy,accuracy,epoch_s,skipped\n\
             \"plain\",lenet,1,4,bsp,uniform,,1.5,\"\"\n\
             \"plain\",lenet,8,4,bsp,deadline,0.9,,\"no \"\"data\"\"\"\n"
        );
    }
}
