//! The report of a run, in Markdown: what was asked, what holds, the papers beside ours, every row, and what was smaller.

use std::collections::BTreeSet;

use super::catalogue::Catalogue;
use super::definition::Definition;
use super::figures::{Figure, cell};
use super::outcome::{Outcome, RowKey};

/// How many rows that did not run are named for each reason.
const PLACES_NAMED: usize = 4;

/// Where and how a run was made.
#[derive(Clone, Debug)]
pub(crate) struct Circumstances {
    /// The command that repeats it.
    pub(crate) command: String,
    /// Processor and cores.
    pub(crate) machine: String,
    /// Commit of the sources, if known.
    pub(crate) commit: Option<String>,
    /// What it took, in seconds.
    pub(crate) took_s: f64,
    /// Where the speeds of the models are from.
    pub(crate) speeds_from: String,
    /// Whether it was the small variant.
    pub(crate) quick: bool,
    /// How many rows are of an earlier call.
    pub(crate) taken_over: usize,
    /// How the cost of the hub's core grows with the fleet, if that was measured.
    pub(crate) costs: Option<String>,
}

/// A picture beside the report.
#[derive(Clone, Debug)]
pub(crate) struct Picture {
    /// File name.
    pub(crate) file: String,
    /// Heading.
    pub(crate) title: String,
}

/// The report.
pub(crate) fn markdown(
    definition: &Definition,
    catalogue: &Catalogue,
    outcomes: &[Outcome],
    pictures: &[Picture],
    circumstances: &Circumstances,
) -> String {
    let mut text = format!("# {}\n\n{}\n", definition.title, definition.question.trim());
    if circumstances.quick {
        text.push_str(
            "\n**This is the small variant (`--quick`): few steps, no gradients. It shows that everything runs, not the \
             figures.**\n",
        );
    }
    section(&mut text, "What holds", &claims(definition, outcomes));
    section(&mut text, "Beside the papers", &papers(definition, outcomes));
    let images: Vec<String> =
        pictures.iter().map(|picture| format!("![{}]({})\n", picture.title, picture.file)).collect();
    section(&mut text, "Pictures", &images.join("\n"));
    section(&mut text, "Every row", &rows(definition, outcomes));
    section(&mut text, "What was trained", &models(catalogue, outcomes));
    section(&mut text, "What the names mean", &names(catalogue, outcomes));
    section(&mut text, "How it was done", &method(definition, outcomes, circumstances));
    text
}

fn section(text: &mut String, heading: &str, body: &str) {
    if !body.is_empty() {
        text.push_str(&format!("\n## {heading}\n\n{}\n", body.trim_end()));
    }
}

fn claims(definition: &Definition, outcomes: &[Outcome]) -> String {
    if definition.claims.is_empty() {
        return String::new();
    }
    let lines: Vec<String> = definition.claims.iter().map(|claim| claim.describe(&claim.judge(outcomes))).collect();
    format!("| claim | | measured |\n|---|---|---|\n{}\n", lines.join("\n"))
}

fn papers(definition: &Definition, outcomes: &[Outcome]) -> String {
    if definition.paper.is_empty() {
        return String::new();
    }
    let mut table = "| what | paper | ours | how they differ |\n|---|---|---|---|\n".to_owned();
    for paper in &definition.paper {
        let ours = paper.ours.as_ref().map_or_else(|| "not repeated".to_owned(), |ours| ours.describe(outcomes));
        table.push_str(&format!(
            "| {} | {} ({}) | {ours} | {} |\n",
            paper.claim, paper.figure, paper.source, paper.differs
        ));
    }
    table
}

fn rows(definition: &Definition, outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    let mut cases: Vec<&str> = Vec::new();
    for outcome in outcomes {
        if !cases.contains(&outcome.key.case.as_str()) {
            cases.push(&outcome.key.case);
        }
    }
    for case in cases {
        let of_case: Vec<&Outcome> = outcomes.iter().filter(|outcome| outcome.key.case == case).collect();
        text.push_str(&format!("### {case}\n\n"));
        text.push_str(&case_table(definition, &of_case));
        let mut reasons: Vec<(&str, Vec<String>)> = Vec::new();
        for outcome in of_case {
            if let Some(reason) = &outcome.skipped {
                let place =
                    format!("{} HL{} {} {}", outcome.key.model, outcome.key.hl, outcome.key.mode, outcome.key.policy);
                match reasons.iter_mut().find(|(known, _)| known == reason) {
                    Some((_, places)) => places.push(place),
                    None => reasons.push((reason, vec![place])),
                }
            }
        }
        for (reason, places) in reasons {
            let more = places.len().saturating_sub(PLACES_NAMED);
            let more = if more > 0 { format!("; and {more} more") } else { String::new() };
            let named = places[..places.len().min(PLACES_NAMED)].join("; ");
            text.push_str(&format!("\nNot run: {named}{more} ({reason}).\n"));
        }
        text.push('\n');
    }
    text
}

/// How a row's key shows in a column.
type KeyColumn = fn(&RowKey) -> String;

/// The rows of one case that ran. A column in which no row has anything is left out.
fn case_table(definition: &Definition, outcomes: &[&Outcome]) -> String {
    let ran: Vec<&&Outcome> = outcomes.iter().filter(|outcome| outcome.skipped.is_none()).collect();
    if ran.is_empty() {
        return String::new();
    }
    let columns: Vec<&String> =
        definition.columns.iter().filter(|name| ran.iter().any(|outcome| outcome.figure(name).is_some())).collect();
    let differ =
        |value: fn(&RowKey) -> String| ran.iter().map(|row| value(&row.key)).collect::<BTreeSet<_>>().len() > 1;
    let keys: [(&str, KeyColumn); 5] = [
        ("HL", |key| key.hl.to_string()),
        ("agents", |key| key.agents.to_string()),
        ("model", |key| key.model.clone()),
        ("mode", |key| key.mode.clone()),
        ("batches", |key| key.policy.clone()),
    ];
    // What all rows share is said once, in the sections around.
    let keys: Vec<_> =
        keys.into_iter().filter(|(name, value)| *name != "agents" && *name != "mode" || differ(*value)).collect();
    let headings = keys
        .iter()
        .map(|(name, _)| *name)
        .chain(columns.iter().map(|name| Figure::find(name).map_or(name.as_str(), |figure| figure.column)));
    let mut table = format!("| {} |\n", headings.collect::<Vec<_>>().join(" | "));
    table.push_str(&format!("|{}{}\n", "---|".repeat(keys.len()), "---:|".repeat(columns.len())));
    for outcome in ran {
        let cells = keys
            .iter()
            .map(|(_, value)| value(&outcome.key))
            .chain(columns.iter().map(|name| cell(name, outcome.figure(name))));
        table.push_str(&format!("| {} |\n", cells.collect::<Vec<_>>().join(" | ")));
    }
    table
}

fn models(catalogue: &Catalogue, outcomes: &[Outcome]) -> String {
    let names: BTreeSet<&String> =
        outcomes.iter().filter(|row| row.skipped.is_none()).map(|row| &row.key.model).collect();
    if names.is_empty() {
        return String::new();
    }
    let mut table = "| model | data | reduced | samples/s of a core | overhead of a step | target |\n\
                     |---|---|---|---:|---:|---:|\n"
        .to_owned();
    for name in names {
        let Some(model) = catalogue.models.get(name) else { continue };
        let Some(speed) = model.speed else { continue };
        let reduced = if model.reduced.is_empty() { "nothing" } else { &model.reduced };
        table.push_str(&format!(
            "| {name}: {} | {} | {reduced} | {:.0} | {:.2} ms | {} |\n",
            model.title,
            model.dataset,
            speed.samples_per_s,
            speed.overhead_s * 1000.0,
            model.target_accuracy.map_or_else(|| "–".to_owned(), |target| format!("{:.0} %", target * 100.0)),
        ));
    }
    table
}

/// The names in the table of rows, in words.
fn names(catalogue: &Catalogue, outcomes: &[Outcome]) -> String {
    let ran = || outcomes.iter().filter(|row| row.skipped.is_none());
    let policies: BTreeSet<&String> = ran().map(|row| &row.key.policy).collect();
    let modes: BTreeSet<&String> = ran().map(|row| &row.key.mode).collect();
    let line = |(name, title): (&String, &str)| format!("- `{name}`: {title}\n");
    let policies = policies.into_iter().filter_map(|name| Some((name, &*catalogue.policies.get(name)?.title)));
    let modes = modes.into_iter().filter_map(|name| Some((name, &*catalogue.modes.get(name)?.title)));
    policies.chain(modes).map(line).collect()
}

fn method(definition: &Definition, outcomes: &[Outcome], circumstances: &Circumstances) -> String {
    let mut text = format!("```\n{}\n```\n\n", circumstances.command);
    let ran = outcomes.iter().filter(|outcome| outcome.skipped.is_none()).count();
    text.push_str(&format!(
        "- {ran} of {} rows in {:.0} s on {}{}.\n",
        outcomes.len(),
        circumstances.took_s,
        circumstances.machine,
        circumstances.commit.as_ref().map_or_else(String::new, |commit| format!(", sources at {commit}")),
    ));
    if circumstances.taken_over > 0 {
        text.push_str(&format!("- {} rows are of an earlier call with the same inputs.\n", circumstances.taken_over));
    }
    text.push_str(&format!("- Speeds of the models: {}\n", circumstances.speeds_from.trim()));
    let levels: Vec<String> = definition
        .levels
        .iter()
        .map(|(level, cores)| {
            let cores: Vec<String> = cores.iter().map(f64::to_string).collect();
            format!("HL{level} {}", cores.join(", "))
        })
        .collect();
    text.push_str(&format!("- Cores of the agents: {}.\n", levels.join("; ")));
    if let Some(costs) = &circumstances.costs {
        text.push_str(&format!("- {costs}\n"));
    }
    for note in &definition.notes {
        text.push_str(&format!("- {}\n", note.trim()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::outcome::tests::outcome;
    use super::super::tests::{catalogue, definition};
    use super::*;

    fn circumstances() -> Circumstances {
        Circumstances {
            command: "cargo xtask experiment test".to_owned(),
            machine: "2 cores of a processor".to_owned(),
            commit: Some("abc1234".to_owned()),
            took_s: 61.0,
            speeds_from: "measured".to_owned(),
            quick: false,
            taken_over: 1,
            costs: None,
        }
    }

    fn report() -> String {
        let mut rows = vec![
            outcome(8, "uniform", &[("epoch_s", 3.0), ("ratio_to_uniform", 1.0), ("ratio_to_limit", 0.33)]),
            outcome(8, "deadline", &[("epoch_s", 1.0), ("ratio_to_uniform", 3.0), ("ratio_to_limit", 0.99)]),
            outcome(1, "deadline", &[]),
        ];
        rows[2].skipped = Some("error: no data set".to_owned());
        let pictures = [Picture { file: "time.svg".to_owned(), title: "Time".to_owned() }];
        markdown(&definition(), &catalogue(), &rows, &pictures, &circumstances())
    }

    #[test]
    fn a_report_says_what_holds_what_the_papers_have_and_what_did_not_run() {
        let report = report();
        for text in [
            "# A test\n",
            "| near the limit | holds | 99.0 % at worst in 1 rows",
            "| speed-up | 2.0× (Some paper, 2025) | 3.00× | their machine is another |",
            "![Time](time.svg)",
            "| 8 | lenet | deadline | 1.00 s | 3.00 | 99.0 % |",
            "Not run: lenet HL1 bsp deadline (error: no data set).",
            "| lenet: LeNet-5 | fashion-mnist | nothing | 1000 | 2.00 ms | 85 % |",
            "- `deadline`: one finish time",
            "cargo xtask experiment test",
            "2 of 3 rows in 61 s on 2 cores of a processor, sources at abc1234.",
            "1 rows are of an earlier call",
        ] {
            assert!(report.contains(text), "{text}\nis not in\n{report}");
        }
    }

    #[test]
    fn columns_without_a_value_are_left_out_and_the_small_variant_says_so() {
        let report = report();
        assert!(!report.contains("| idle |") && !report.contains("--quick"), "{report}");
        let quick = Circumstances { quick: true, ..circumstances() };
        assert!(markdown(&definition(), &catalogue(), &[], &[], &quick).contains("--quick"));
    }
}
