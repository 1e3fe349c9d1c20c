//! The figures that rows have: what they are called in tables and beside axes, and how they are written.

/// How a figure is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Seconds,
    Milliseconds,
    Percent,
    Times,
    Number,
    Megabytes,
    Kilobytes,
}

/// One figure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figure {
    /// As in CSV files and definitions.
    pub(crate) name: &'static str,
    /// Above its column.
    pub(crate) column: &'static str,
    /// Beside its axis, with the unit.
    pub(crate) axis: &'static str,
    unit: Unit,
}

const fn figure(name: &'static str, column: &'static str, axis: &'static str, unit: Unit) -> Figure {
    Figure { name, column, axis, unit }
}

/// Every figure that a table or a picture may show.
const FIGURES: &[Figure] = &[
    figure("epoch_s", "epoch", "time per epoch, s", Unit::Seconds),
    figure("time_to_target_s", "to target", "time to the target accuracy, s", Unit::Seconds),
    figure("accuracy", "accuracy", "test accuracy, %", Unit::Percent),
    figure("accuracy_min", "lowest", "lowest accuracy, %", Unit::Percent),
    figure("accuracy_max", "highest", "highest accuracy, %", Unit::Percent),
    figure("accuracy_lost", "lost to HL1", "accuracy lost, %", Unit::Percent),
    figure("accuracy_gained", "over uniform", "accuracy over that of uniform, %", Unit::Percent),
    figure("recovered", "recovered", "share recovered, %", Unit::Percent),
    figure("loss", "loss", "loss", Unit::Number),
    figure("idle_share", "idle", "idle share, %", Unit::Percent),
    figure("mean_staleness", "staleness", "mean staleness, steps", Unit::Number),
    figure("staleness_p95", "95 % below", "95th percentile of staleness, steps", Unit::Number),
    figure("staleness_max", "stalest", "largest staleness, steps", Unit::Number),
    figure("refused_stale", "refused", "updates refused as too stale", Unit::Number),
    figure("ratio_to_uniform", "uniform/this", "times as fast as uniform", Unit::Times),
    figure("target_ratio_to_uniform", "to target, uniform/this", "times as fast as uniform to the target", Unit::Times),
    figure("ratio_to_hl1", "this/HL1", "time over that at HL1", Unit::Times),
    figure("ratio_to_limit", "limit/this", "part of the arithmetic limit, %", Unit::Percent),
    figure("over_oracle", "over the oracle", "time over the oracle's, %", Unit::Percent),
    figure("rounds", "rounds", "rounds", Unit::Number),
    figure("bytes_per_round", "bytes/round", "bytes per round, kB", Unit::Kilobytes),
    figure("core_cpu_ms_per_round", "CPU/round", "CPU of the hub's core per round, ms", Unit::Milliseconds),
    figure(
        "core_cpu_ms_per_1000_agents_and_round",
        "CPU/1000 agents",
        "CPU of the hub's core per 1000 agents and round, ms",
        Unit::Milliseconds,
    ),
    figure("wall_s", "it took", "time of the simulation, s", Unit::Seconds),
    figure("predicted_epoch_s", "virtual epoch", "predicted time per epoch, s", Unit::Seconds),
    figure("quota_epoch_s", "by quotas", "time per epoch that CPU time and quotas demand, s", Unit::Seconds),
    figure("real_over_virtual", "real/virtual", "measured over predicted", Unit::Times),
    figure("detect_s", "detected", "time to detect, s", Unit::Seconds),
    figure("recover_s", "recovered after", "time to recover, s", Unit::Seconds),
    figure("hub_resident_bytes", "hub memory", "resident memory of the hub, MB", Unit::Megabytes),
    figure("samples_per_s", "samples/s", "samples per second", Unit::Number),
    figure("samples_per_s_before", "samples/s before", "samples per second before", Unit::Number),
    figure("kept", "kept", "throughput kept, %", Unit::Percent),
    figure("cut_at_s", "cut at", "time of the cut, s", Unit::Seconds),
    figure("round_deadline_s", "rounds wait", "how long a round waits, s", Unit::Seconds),
];

impl Figure {
    /// The figure of this name; one that is not listed is shown as a plain number under its name.
    pub(crate) fn find(name: &str) -> Option<&'static Figure> {
        FIGURES.iter().find(|figure| figure.name == name)
    }

    /// Its value with the unit.
    pub(crate) fn show(&self, value: f64) -> String {
        match self.unit {
            Unit::Seconds if value != 0.0 && value.abs() < 0.1 => format!("{} ms", digits(value * 1e3)),
            Unit::Seconds => format!("{} s", digits(value)),
            Unit::Milliseconds => format!("{} ms", digits(value)),
            // Nothing is not less than nothing.
            Unit::Percent => format!("{:.1} %", value * 100.0).replace("-0.0 %", "0.0 %"),
            Unit::Times => format!("{value:.2}"),
            Unit::Number => digits(value),
            Unit::Megabytes => format!("{:.1} MB", value / 1e6),
            Unit::Kilobytes => format!("{:.0} kB", value / 1e3),
        }
    }

    /// Its value in the unit of its axis.
    pub(crate) fn on_axis(&self, value: f64) -> f64 {
        match self.unit {
            Unit::Percent => value * 100.0,
            Unit::Megabytes => value / 1e6,
            Unit::Kilobytes => value / 1e3,
            Unit::Seconds | Unit::Milliseconds | Unit::Times | Unit::Number => value,
        }
    }
}

/// About three significant digits, none of them invented for large numbers.
fn digits(value: f64) -> String {
    match value.abs() {
        size if size == 0.0 || size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

/// A figure as a cell: with its unit, or a dash.
pub(crate) fn cell(name: &str, value: Option<f64>) -> String {
    match (value, Figure::find(name)) {
        (None, _) => "–".to_owned(),
        (Some(value), Some(figure)) => figure.show(value),
        (Some(value), None) => digits(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_written_with_their_units() {
        assert_eq!(cell("epoch_s", Some(2.3456)), "2.35 s");
        assert_eq!(cell("epoch_s", Some(1234.5)), "1234 s");
        assert_eq!(cell("detect_s", Some(0.0059)), "5.90 ms");
        assert_eq!(cell("accuracy", Some(0.8768)), "87.7 %");
        assert_eq!(cell("accuracy_lost", Some(-0.0004)), "0.0 %");
        assert_eq!(cell("accuracy_lost", Some(-0.0104)), "-1.0 %");
        assert_eq!(cell("ratio_to_uniform", Some(2.987)), "2.99");
        assert_eq!(cell("core_cpu_ms_per_round", Some(0.0123)), "0.0123 ms");
        assert_eq!(cell("hub_resident_bytes", Some(21_000_000.0)), "21.0 MB");
        assert_eq!(cell("anything", Some(12.34)), "12.3");
        assert_eq!(cell("accuracy", None), "–");
    }

    #[test]
    fn names_are_unique() {
        let names: std::collections::BTreeSet<_> = FIGURES.iter().map(|figure| figure.name).collect();
        assert_eq!(names.len(), FIGURES.len());
    }
}
