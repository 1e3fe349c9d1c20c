use super::catalogue::Catalogue;
use super::definition::{Definition, DefinitionError, Gradients};
use super::*;

/// A catalogue of one model.
pub(crate) const CATALOGUE: &str = r#"
    speeds_from = "measured"
    [models.lenet]
    title = "LeNet-5"
    kernel = "lenet"
    dataset = "fashion-mnist"
    speed = { samples_per_s = 1000.0, overhead_s = 0.002 }
    target_accuracy = 0.85
    job = { training = { global_batch = 128 }, optimizer = { learning_rate = 0.04 }, evaluate = { every_steps = 100 } }
    [policies.uniform]
    title = "equal batches"
    job = { batching = { policy = "uniform" } }
    [policies.deadline]
    title = "one finish time"
    job = { batching = { policy = "dynamic", controller = "deadline" } }
    [modes.bsp]
    title = "all wait"
    job = { training = { mode = "bsp" } }
    [modes.asp]
    title = "nobody waits"
    update_per_agent = true
    whole_update = true
    job = { training = { mode = "asp" } }
"#;

const DEFINITION: &str = r#"
    name = "test"
    title = "A test"
    question = "Does it work?"
    kind = "virtual"
    minutes = 1.0
    [levels]
    1 = [12, 12, 12, 12]
    8 = [6, 6, 4, 32]
    [[cases]]
    name = "plain"
    models = ["lenet"]
    hl = [1, 8]
    modes = ["bsp", "asp"]
    policies = ["uniform", "deadline"]
    [[cases]]
    name = "changing"
    models = ["lenet"]
    schedule = { hl = [1, 8, 1], epochs_each = 2 }
    policies = ["uniform"]
    overhead = "measured"
    gradients = "once"
    seeds = [1, 2]
    [[claims]]
    text = "near the limit"
    figure = "ratio_to_limit"
    where = { policy = "deadline" }
    at_least = 0.97
    [[paper]]
    claim = "speed-up"
    figure = "2.0×"
    source = "Some paper, 2025"
    ours = { figure = "ratio_to_uniform", show = "times", where = { policy = "deadline" } }
    differs = "their machine is another"
"#;

pub(crate) fn catalogue() -> Catalogue {
    toml::from_str(CATALOGUE).unwrap()
}

pub(crate) fn definition() -> Definition {
    Definition::parse(DEFINITION, "test.toml", &catalogue()).unwrap()
}

/// Why a definition with one line in another's place is refused.
fn refusal(line: &str, other: &str) -> String {
    assert!(DEFINITION.contains(line));
    let error = Definition::parse(&DEFINITION.replacen(line, other, 1), "test.toml", &catalogue()).unwrap_err();
    format!("{:#}", anyhow::Error::from(error))
}

#[test]
fn a_mistake_in_a_definition_is_named_with_its_place() {
    let unknown = refusal("models = [\"lenet\"]", "models = [\"lenett\"]");
    assert_eq!(unknown, "test.toml, cases[0].models: `lenett` is not known; known are lenet");
    assert!(refusal("hl = [1, 8]", "hl = [3]").contains("`3` is not known; known are 1, 8"));
    assert!(refusal("hl = [1, 8]", "hl = []").contains("either `hl` or `schedule`"));
    assert!(refusal("modes = [\"bsp\", \"asp\"]", "modes = [\"asp\"]\ngradients = \"once\"").contains("BSP alone"));
    assert!(refusal("at_least = 0.97", "").contains("needs `at_least` or `at_most`"));
    assert!(refusal("name = \"test\"", "name = \"other\"").contains("must be the name of the file"));
    assert!(refusal("minutes = 1.0", "minutes = 1.0\nminuets = 2").contains("minuets"));
    assert!(refusal("1 = [12, 12, 12, 12]", "1 = [12, 0]").contains("levels.1"));
}

#[test]
fn a_definition_that_is_not_there_is_named() {
    let error = Definition::read(Path::new("nowhere/test.toml"), &catalogue()).unwrap_err();
    assert!(
        matches!(&error, DefinitionError::Read { .. }) && error.to_string().contains("nowhere/test.toml"),
        "{error}"
    );
}

#[test]
fn the_small_variant_has_no_gradients_and_ends_after_few_steps() {
    let quick = definition().quick();
    assert!(quick.cases.iter().all(|case| case.gradients == Gradients::None && case.seeds.len() == 1));
    assert_eq!(quick.cases[0].job["stop"]["steps"].as_integer(), Some(40));
    assert_eq!(quick.cases[1].schedule.as_ref().unwrap().epochs_each, 1);
}

#[test]
fn experiments_are_chosen_by_name_and_listed_with_their_length() {
    let all = vec![definition()];
    assert_eq!(choose(all.clone(), &["test".to_owned()]).unwrap().len(), 1);
    assert_eq!(choose(all.clone(), &["all".to_owned()]).unwrap().len(), 1);
    let error = choose(all.clone(), &["tset".to_owned()]).unwrap_err().to_string();
    assert_eq!(error, "there is no experiment `tset`; there are test, and `all`");
    assert_eq!(list(&all), "test  about  1 min  A test\n");
}

#[test]
fn every_definition_in_the_repository_is_sound_and_can_be_planned() {
    let workspace = Workspace::find().unwrap();
    let folder = workspace.root().join(FOLDER);
    let catalogue = Catalogue::read(&folder).unwrap();
    let all = definitions(&folder, &catalogue).unwrap();
    let names: Vec<&str> = all.iter().map(|definition| definition.name.as_str()).collect();
    assert_eq!(names, ["hl-asp", "hl-bsp", "hl-schedule", "operations", "rules", "scale", "tam", "throttled"]);
    for definition in &all {
        for row in plan::rows(definition, &catalogue).unwrap() {
            // A model that nobody has measured is planned, and told of when it is to run.
            assert_eq!(row.fleet_file(1).is_ok(), row.model.speed.is_some(), "{:?}", row.key);
            row.job_file(Path::new("kernel.wasm"), 1).unwrap();
        }
        let shown = definition.claims.iter().map(|claim| &claim.figure).chain(&definition.columns);
        for figure in shown.chain(definition.paper.iter().filter_map(|paper| Some(&paper.ours.as_ref()?.figure))) {
            assert!(figures::Figure::find(figure).is_some(), "{}: no figure `{figure}`", definition.name);
        }
    }
}

/// The simulator and the kernels, if they are built; `cargo nextest run --workspace` builds the first.
fn built_simulator(workspace: &Workspace) -> Option<PathBuf> {
    let program = workspace.target().join("debug/omnilearn-sim");
    let missing = [program.clone(), workspace.component("lenet")].into_iter().find(|path| !path.is_file());
    if let Some(path) = missing {
        eprintln!("skipped: {} is not built", path.display());
        return None;
    }
    Some(program)
}

#[test]
fn a_small_experiment_runs_through_the_simulator_and_is_taken_over_by_the_next_call() {
    let workspace = Workspace::find().unwrap();
    let Some(program) = built_simulator(&workspace) else { return };
    let out = tempfile::tempdir().unwrap();
    let (definition, catalogue) = (definition().quick(), catalogue());
    let planned = plan::rows(&definition, &catalogue).unwrap();
    let interrupt = Interrupt::listen().unwrap();
    let run = |resume| {
        let simulator = Simulator { workspace: &workspace, program: program.clone(), data: None, state: None, resume };
        let mut rows = simulate_all(&simulator, &planned, out.path(), &interrupt).unwrap();
        ratios::compare(&mut rows.outcomes);
        rows
    };
    let rows = run(false);
    assert_eq!(rows.taken_over, 0);
    for outcome in &rows.outcomes {
        assert_eq!(outcome.skipped, None, "{:?}", outcome.key);
        assert!(outcome.figure("epoch_s").is_some() && outcome.figure("accuracy").is_none(), "{outcome:?}");
    }
    let row = |hl: u32, mode: &str, policy: &str| {
        let found = rows.outcomes.iter().find(|row| {
            row.key.case == "plain" && row.key.hl == hl && row.key.mode == mode && row.key.policy == policy
        });
        found.unwrap()
    };
    // Forty steps, of which many are with equal batches; the limit is 3.
    assert!(row(8, "bsp", "deadline").figure("ratio_to_uniform").unwrap() > 1.5);
    assert!((row(1, "bsp", "deadline").figure("ratio_to_uniform").unwrap() - 1.0).abs() < 0.01);
    assert!(row(8, "asp", "uniform").figure("mean_staleness").unwrap() > 0.0);

    let again = run(true);
    assert_eq!(again.taken_over, planned.len());
    assert_eq!(again.outcomes, rows.outcomes);

    let run = Run {
        workspace: &workspace,
        definition: &definition,
        catalogue: &catalogue,
        library: None,
        out: out.path(),
        quick: true,
    };
    let report = run.write_results(&rows.outcomes, again.taken_over, std::time::Duration::from_secs(1)).unwrap();
    assert!(fs::read_to_string(report).unwrap().contains("| 8 | lenet | bsp | deadline |"));
    assert!(out.path().join("rows.csv").is_file());
}
