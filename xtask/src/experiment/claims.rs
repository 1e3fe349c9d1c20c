//! Whether what is said of a result holds in it.

use super::definition::{Claim, Ours, Show};
use super::figures::cell;
use super::outcome::{Outcome, RowKey};

/// What became of a claim.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// It holds in all of so many rows; the value that comes closest to the bound, and where.
    Holds { rows: usize, value: f64, key: RowKey },
    /// It does not; the value that is furthest off, and where.
    Fails { value: f64, key: RowKey },
    /// No row has the figure.
    NotMeasured,
}

impl Claim {
    /// Looks at all rows that it speaks of.
    pub(crate) fn judge(&self, outcomes: &[Outcome]) -> Verdict {
        // How far a value is within the bounds; below zero it is outside.
        let margin = |value: f64| {
            let above = self.at_least.map_or(f64::INFINITY, |least| value - least);
            above.min(self.at_most.map_or(f64::INFINITY, |most| most - value))
        };
        let values: Vec<(f64, &RowKey)> = outcomes
            .iter()
            .filter(|row| row.skipped.is_none() && self.filter.matches(&row.key))
            .filter_map(|row| Some((row.figure(&self.figure)?, &row.key)))
            .collect();
        let rows = values.len();
        match values.into_iter().min_by(|left, right| margin(left.0).total_cmp(&margin(right.0))) {
            None => Verdict::NotMeasured,
            Some((value, key)) if margin(value) >= 0.0 => Verdict::Holds { rows, value, key: key.clone() },
            Some((value, key)) => Verdict::Fails { value, key: key.clone() },
        }
    }

    /// A line of the report's table.
    pub(crate) fn describe(&self, verdict: &Verdict) -> String {
        let text = &self.text;
        let place = |key: &RowKey| format!("{}, HL{}, {}, {}, {}", key.case, key.hl, key.model, key.mode, key.policy);
        match verdict {
            Verdict::Holds { rows, value, key } => {
                let value = cell(&self.figure, Some(*value));
                format!("| {text} | holds | {value} at worst in {rows} rows ({}) |", place(key))
            }
            Verdict::Fails { value, key } => {
                format!("| {text} | **does not hold** | {} ({}) |", cell(&self.figure, Some(*value)), place(key))
            }
            Verdict::NotMeasured => format!("| {text} | no row to tell from | – |"),
        }
    }
}

impl Ours {
    /// Our figure over the rows that it speaks of: one value, or the lowest and the highest.
    pub(crate) fn describe(&self, outcomes: &[Outcome]) -> String {
        let values: Vec<f64> = outcomes
            .iter()
            .filter(|row| row.skipped.is_none() && self.filter.matches(&row.key))
            .filter_map(|row| row.figure(&self.figure))
            .map(|value| if self.show == Show::Saved { 1.0 / value - 1.0 } else { value })
            .collect();
        let show = |value: f64| match self.show {
            Show::Plain => cell(&self.figure, Some(value)),
            Show::Times => format!("{value:.2}×"),
            Show::Percent => format!("{:.1} %", value * 100.0),
            Show::Saved => format!("{:+.0} %", value * 100.0).replace('-', "−"),
        };
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        match (values.is_empty(), show(low) == show(high)) {
            (true, _) => "not measured".to_owned(),
            (false, true) => show(low),
            (false, false) => format!("{} … {}", show(low), show(high)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::outcome::tests::outcome;
    use super::*;

    fn claim(bounds: &str) -> Claim {
        let text = "text = \"near the limit\"\nfigure = \"ratio_to_limit\"\nwhere = { policy = \"deadline\" }\n";
        toml::from_str(&format!("{text}{bounds}")).unwrap()
    }

    fn rows() -> [Outcome; 3] {
        [
            outcome(1, "deadline", &[("ratio_to_limit", 0.999)]),
            outcome(8, "deadline", &[("ratio_to_limit", 0.98)]),
            outcome(8, "uniform", &[("ratio_to_limit", 0.33)]),
        ]
    }

    #[test]
    fn a_claim_holds_if_it_holds_in_every_row_that_it_speaks_of() {
        let claim = claim("at_least = 0.97");
        let verdict = claim.judge(&rows());
        assert_eq!(verdict, Verdict::Holds { rows: 2, value: 0.98, key: rows()[1].key.clone() });
        assert_eq!(
            claim.describe(&verdict),
            "| near the limit | holds | 98.0 % at worst in 2 rows (plain, HL8, lenet, bsp, deadline) |"
        );
    }

    #[test]
    fn the_worst_row_is_named_where_it_fails() {
        assert_eq!(claim("at_least = 0.99").judge(&rows()), Verdict::Fails { value: 0.98, key: rows()[1].key.clone() });
        assert_eq!(
            claim("at_least = 0.5\nat_most = 0.99").judge(&rows()),
            Verdict::Fails { value: 0.999, key: rows()[0].key.clone() }
        );
    }

    #[test]
    fn rows_that_did_not_run_prove_nothing() {
        let mut rows = rows();
        for row in &mut rows {
            row.skipped = Some("no data".to_owned());
        }
        assert_eq!(claim("at_least = 0.5").judge(&rows), Verdict::NotMeasured);
        assert_eq!(claim("at_least = 0.5").judge(&[]), Verdict::NotMeasured);
    }

    #[test]
    fn ours_beside_a_papers_is_a_range_in_the_papers_terms() {
        let rows = [
            outcome(2, "deadline", &[("ratio_to_uniform", 1.5)]),
            outcome(8, "deadline", &[("ratio_to_uniform", 3.0)]),
        ];
        let ours =
            |show: &str| toml::from_str::<Ours>(&format!("figure = \"ratio_to_uniform\"\nshow = \"{show}\"")).unwrap();
        assert_eq!(ours("times").describe(&rows), "1.50× … 3.00×");
        assert_eq!(ours("saved").describe(&rows), "−67 % … −33 %");
        assert_eq!(ours("times").describe(&rows[..1]), "1.50×");
        assert_eq!(ours("times").describe(&[]), "not measured");
    }
}
