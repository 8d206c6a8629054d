//! Taking over a stripe whose owner is gone for good. Nothing is claimed until all is checked that can keep the
//! configuration from being served: a stripe that the new owner refuses afterwards would have no owner at all.

use engine::{LaneHandle, store};
use volume::{
    claim::Others,
    config::Starts,
    graph::{Graph, Identified, Tree},
};

use crate::{
    DaemonFailure, OpenRefusal, ServedSite,
    config::Config,
    daemon::close,
    open::{Survey, prepare},
    process::Process,
    record::{DiskKind, Records},
    state::StateDirectory,
    survey::Asked,
};

/// A stripe that was taken over. The claim stays when this is dropped, for the daemon that is started next.
#[derive(Debug)]
pub struct TakenOver {
    _tree: Tree,
    _graph: Graph,
    _state: StateDirectory,
}

/// Takes over the stripe or concat in the volume of `config` called `name`, on the home lane `home`, for the daemon
/// that is started next; `others` says whether even from an owner that cannot be fenced off. `config` has been checked
/// [as for that daemon](Config::load_to_serve).
///
/// # Errors
/// Whatever keeps it from being taken over, or from being served afterwards.
pub async fn take_over(
    config: &Config,
    process: &Process,
    name: &str,
    home: &LaneHandle,
    others: Others,
) -> Result<TakenOver, DaemonFailure> {
    let directory = config.state_directory();
    let served = config.served()?;
    let site = config.site(&directory, &served);
    let refused = |refusal| config.refused(refusal);
    let graph_of = |state: Option<&StateDirectory>| {
        let owner = process.owner(state);
        let mut graph = config.graph()?;
        graph.set_owner(owner.map_err(|error| refused(error.into()))?);
        graph.set_state_directory(&directory);
        Ok::<_, DaemonFailure>(graph)
    };
    // A new state directory is created only for a stripe that is taken over.
    let existing = match store::look(&directory) {
        Ok(_) => Some(prepare(&site, true).map_err(refused)?),
        Err(_) => None,
    };
    let mut graph = graph_of(existing.as_ref())?;
    let identified = graph.identify(name, home, others).await;
    close(&mut graph).await;
    drop(graph);
    let identified = identified.map_err(|error| config.failed(&error))?;
    if let Some(identified) = identified {
        judge(&site, &identified).map_err(refused)?;
    }
    let state = match existing {
        Some(state) => state,
        None => prepare(&site, true).map_err(refused)?,
    };
    let mut graph = graph_of(Some(&state))?;
    let tree = match graph.take_over(name, home, others).await {
        Ok(tree) => tree,
        Err(error) => {
            // What stripes within it have claimed must not stay behind.
            close(&mut graph).await;
            return Err(config.failed(&error));
        }
    };
    Ok(TakenOver {
        _tree: tree,
        _graph: graph,
        _state: state,
    })
}

/// Refuses a stripe that the daemon started next would refuse.
fn judge(site: &ServedSite<'_>, stripe: &Identified) -> Result<(), OpenRefusal> {
    let records = Records::read(site.state)?;
    let survey = Survey::make(site, &records, &Starts::default(), false)?;
    let known = survey.known(site, &records);
    let is_it =
        |asked: &Asked| asked.root == stripe.root && matches!(asked.kind, DiskKind::Superblocks(_));
    let Some(at) = survey.all.iter().position(is_it) else {
        return Ok(()); // It is not served.
    };
    let carried = |index: usize| match index == at {
        true => Some(stripe.uuid),
        false => survey.all[index].carried,
    };
    let taken = known.taken(&survey.all, &survey.identities, carried);
    let judged = known.judge_carried(&survey.all[at], carried(at), &taken);
    // The record that it contradicts may be that of another stripe, which nothing tells before it is open.
    let is_told = |(index, asked): (usize, &Asked)| {
        !matches!(asked.kind, DiskKind::Superblocks(_)) || carried(index).is_some()
    };
    match judged {
        Err(error) if survey.all.iter().enumerate().all(is_told) => {
            Err(OpenRefusal::Volumes(vec![error]))
        }
        _ => Ok(()),
    }
}
