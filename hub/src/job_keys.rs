//! Every key that a job file may have, so that a misspelt one is answered with the nearest.

use toml::de::{DeTable, DeValue};

/// Sections and their keys; the first is the top of the file. The settings of a kernel are the kernel's to check.
pub(crate) const KEYS: &[(&str, &[&str])] = &[
    (
        "",
        &[
            "name",
            "seed",
            "dataset",
            "data",
            "kernel",
            "training",
            "batching",
            "asp",
            "optimizer",
            "schedule",
            "evaluate",
            "stop",
            "fleet",
            "backup_workers",
            "hop",
            "anytime",
            "local_sgd",
            "ssp",
            "con_sgd",
            "dyn_sgd",
            "elastic_averaging",
        ],
    ),
    ("data", &["augment", "partition", "parts", "alpha", "labels_per_agent"]),
    ("kernel", &["path", "weights", "weights_except", "frozen", "settings"]),
    ("training", &["mode", "global_batch", "codec", "clip_norm"]),
    (
        "batching",
        &[
            "policy",
            "controller",
            "batch_min",
            "batch_max",
            "dead_band",
            "gain",
            "start",
            "calibration_batches",
            "shares",
        ],
    ),
    ("asp", &["staleness_max", "damping"]),
    ("optimizer", &["kind", "learning_rate", "momentum", "nesterov", "weight_decay", "betas", "epsilon"]),
    ("schedule", &["kind", "warmup_steps", "milestones", "factor", "total_steps", "minimum"]),
    ("evaluate", &["every_epochs", "every_steps", "batch"]),
    ("stop", &["epochs", "steps", "target_accuracy", "wall_time_s"]),
    ("fleet", &["agents_min", "wait_for_agents", "wait_timeout_s", "round_deadline_s"]),
    ("backup_workers", &["backups"]),
    ("hop", &["backups", "staleness_max"]),
    ("anytime", &["compute_s"]),
    ("local_sgd", &["local_steps", "learning_rate", "momentum", "balance"]),
    ("ssp", &["lead_max"]),
    ("con_sgd", &["lead_max", "rate"]),
    ("dyn_sgd", &["lead_max"]),
    ("elastic_averaging", &["local_steps", "learning_rate", "momentum", "alpha"]),
];

/// A key that no one knows.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: unknown {what}{advice}")]
pub struct UnknownKey {
    /// Where it stands, from 1.
    pub line: usize,
    /// The key and its section.
    pub what: String,
    /// The nearest known key, or all that are known there.
    pub advice: String,
}

/// The name in `known` that is most like `name`, if any is.
pub(crate) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let likeness = |candidate: &str| strsim::jaro_winkler(&name.to_lowercase(), candidate);
    let candidates = known.into_iter().map(|candidate| (likeness(candidate), candidate));
    candidates.filter(|(likeness, _)| *likeness >= 0.8).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, name)| name)
}

/// Refuses unknown keys.
///
/// # Errors
/// The first unknown key; text that is no TOML is left to the parser that comes after.
pub(crate) fn check(text: &str) -> Result<(), UnknownKey> {
    let Ok(document) = DeTable::parse(text) else { return Ok(()) };
    let line = |position: usize| text[..position.min(text.len())].matches('\n').count() + 1;
    let top = KEYS[0].1;
    let mut unknown: Vec<(usize, UnknownKey)> = Vec::new();
    let mut check_table = |section: &str, known: &[&str], table: &DeTable<'_>| {
        for (key, value) in table {
            let name: &str = key.get_ref();
            if known.contains(&name) {
                continue;
            }
            let position = key.span().start;
            let is_table = matches!(value.get_ref(), DeValue::Table(_));
            let error = UnknownKey {
                line: line(position),
                what: describe(section, name, is_table),
                advice: advice(section, name, known, is_table),
            };
            unknown.push((position, error));
        }
    };
    let table = document.get_ref();
    check_table("", top, table);
    for (key, value) in table {
        let name: &str = key.get_ref();
        if let (Some((section, known)), DeValue::Table(table)) =
            (KEYS[1..].iter().find(|(section, _)| *section == name), value.get_ref())
        {
            check_table(section, known, table);
        }
    }
    match unknown.into_iter().min_by_key(|(position, _)| *position) {
        Some((_, error)) => Err(error),
        None => Ok(()),
    }
}

fn describe(section: &str, name: &str, is_table: bool) -> String {
    match (section, is_table) {
        ("", true) => format!("section [{name}]"),
        ("", false) => format!("key `{name}` at the top of the file"),
        (section, true) => format!("section [{section}.{name}]"),
        (section, false) => format!("key `{name}` in [{section}]"),
    }
}

fn advice(section: &str, name: &str, known: &[&str], is_table: bool) -> String {
    if let Some((home, _)) = KEYS.iter().find(|(home, keys)| *home != section && keys.contains(&name)) {
        return match *home {
            "" => format!("; `{name}` belongs at the top of the file, before the first section"),
            home => format!("; `{name}` belongs in [{home}]"),
        };
    }
    match nearest(name, known.iter().copied()) {
        Some(nearest) if is_table && section.is_empty() => format!(", did you mean [{nearest}]?"),
        Some(nearest) => format!(", did you mean `{nearest}`?"),
        None => format!("; known there: {}", known.join(", ")),
    }
}
