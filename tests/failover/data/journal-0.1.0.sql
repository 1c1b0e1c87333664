BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0011');
CREATE TABLE "budget_plans" (
	id INTEGER NOT NULL, 
	name VARCHAR(200) NOT NULL, 
	period VARCHAR(32) NOT NULL, 
	start_at BIGINT NOT NULL, 
	end_at BIGINT NOT NULL, 
	made_at BIGINT NOT NULL, 
	limit_ug BIGINT NOT NULL, 
	hours_ug TEXT NOT NULL, 
	why TEXT NOT NULL, 
	signal VARCHAR(200) NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE carbon_fetches (
	signal VARCHAR(200) NOT NULL, 
	ok_at BIGINT, 
	failed_at BIGINT, 
	detail TEXT NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	deep_at BIGINT, 
	filled_from BIGINT, 
	rung VARCHAR(16) NOT NULL, 
	rung_at BIGINT, 
	PRIMARY KEY (signal)
);
CREATE TABLE carbon_forecasts (
	id INTEGER NOT NULL, 
	signal VARCHAR(200) NOT NULL, 
	rung VARCHAR(16) NOT NULL, 
	source VARCHAR(64) NOT NULL, 
	issued_at BIGINT NOT NULL, 
	fetched_at BIGINT NOT NULL, 
	model VARCHAR(200) NOT NULL, 
	first_at BIGINT NOT NULL, 
	last_at BIGINT NOT NULL, 
	slots TEXT NOT NULL, 
	parts TEXT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE carbon_points (
	id INTEGER NOT NULL, 
	signal VARCHAR(200) NOT NULL, 
	start_at BIGINT NOT NULL, 
	end_at BIGINT NOT NULL, 
	g_milli_per_kwh BIGINT NOT NULL, 
	quality VARCHAR(16) NOT NULL, 
	issued_at BIGINT NOT NULL, 
	fetched_at BIGINT NOT NULL, 
	model VARCHAR(64) NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE carbon_skill (
	signal VARCHAR(200) NOT NULL, 
	skill TEXT NOT NULL, 
	at BIGINT NOT NULL, 
	usual TEXT NOT NULL, 
	PRIMARY KEY (signal)
);
CREATE TABLE clock_marks (
	host VARCHAR(255) NOT NULL, 
	boot_id VARCHAR(64) NOT NULL, 
	at BIGINT NOT NULL, 
	monotonic_us BIGINT NOT NULL, 
	held_us BIGINT NOT NULL, 
	why TEXT NOT NULL, stepped_us BIGINT DEFAULT '0' NOT NULL, 
	PRIMARY KEY (host)
);
CREATE TABLE closed_periods (
	period VARCHAR(32) NOT NULL, 
	timezone VARCHAR(64) NOT NULL, 
	start_at BIGINT NOT NULL, 
	end_at BIGINT NOT NULL, 
	closed_at BIGINT NOT NULL, 
	figures TEXT NOT NULL, 
	PRIMARY KEY (period, timezone)
);
CREATE TABLE closed_runs (
	run VARCHAR(64) NOT NULL, 
	closed_at BIGINT NOT NULL, 
	figures TEXT NOT NULL, 
	PRIMARY KEY (run)
);
CREATE TABLE "counters" (
	gpu_uuid VARCHAR(64) NOT NULL, 
	energy_mj BIGINT NOT NULL, 
	at BIGINT NOT NULL, 
	monotonic_s FLOAT NOT NULL, 
	boot_id VARCHAR(64) NOT NULL, 
	source VARCHAR(32) NOT NULL, 
	booked_mj BIGINT NOT NULL, 
	unobserved_ms BIGINT NOT NULL, 
	recovered_ms BIGINT NOT NULL, 
	since_us BIGINT NOT NULL, 
	PRIMARY KEY (gpu_uuid)
);
CREATE TABLE coverage (
	gpu_uuid VARCHAR(64) NOT NULL, 
	from_at BIGINT NOT NULL, 
	until_at BIGINT NOT NULL, 
	PRIMARY KEY (gpu_uuid, from_at)
);
CREATE TABLE decisions (
	id INTEGER NOT NULL, 
	run VARCHAR(64) NOT NULL, 
	first_at BIGINT NOT NULL, 
	last_at BIGINT NOT NULL, 
	count INTEGER NOT NULL, 
	epoch INTEGER NOT NULL, 
	mode VARCHAR(16) NOT NULL, 
	action VARCHAR(16) NOT NULL, 
	kind VARCHAR(32) NOT NULL, 
	current VARCHAR(64) NOT NULL, 
	target VARCHAR(64) NOT NULL, 
	reason TEXT NOT NULL, 
	numbers TEXT NOT NULL, 
	forecast INTEGER, 
	PRIMARY KEY (id)
);
CREATE TABLE deliveries (
	node VARCHAR(255) NOT NULL, 
	boot_id VARCHAR(64) NOT NULL, 
	seq BIGINT NOT NULL, 
	at BIGINT NOT NULL, 
	PRIMARY KEY (node, boot_id)
);
CREATE TABLE "emissions" (
	scenario VARCHAR(16) NOT NULL, 
	run VARCHAR(64) NOT NULL, 
	gpu_uuid VARCHAR(64) NOT NULL, 
	slot_start BIGINT NOT NULL, 
	line VARCHAR(32) NOT NULL, 
	slot_end BIGINT NOT NULL, 
	signal VARCHAR(200) NOT NULL, 
	quality VARCHAR(16) NOT NULL, 
	energy_mj BIGINT, 
	g_milli_per_kwh BIGINT, 
	pue_milli INTEGER NOT NULL, 
	carbon_ug BIGINT, 
	first_carbon_ug BIGINT, 
	tokens BIGINT NOT NULL, 
	model VARCHAR(64) NOT NULL, 
	stand_in VARCHAR(200) NOT NULL, 
	energy_quality VARCHAR(64) NOT NULL, 
	upper_mj BIGINT NOT NULL, 
	upper_ug BIGINT, 
	PRIMARY KEY (scenario, run, gpu_uuid, slot_start, line)
);
CREATE TABLE "energy" (
	gpu_uuid VARCHAR(64) NOT NULL, 
	run VARCHAR(64) NOT NULL, 
	slot_start BIGINT NOT NULL, 
	slot_end BIGINT NOT NULL, 
	incarnation VARCHAR(64) NOT NULL, 
	energy_mj BIGINT, 
	unobserved_ms BIGINT NOT NULL, 
	upper_mj BIGINT NOT NULL, 
	source VARCHAR(32) NOT NULL, 
	quality VARCHAR(64) NOT NULL, 
	line VARCHAR(32) NOT NULL, 
	PRIMARY KEY (gpu_uuid, run, slot_start, line)
);
CREATE TABLE events (
	id INTEGER NOT NULL, 
	at BIGINT NOT NULL, 
	kind VARCHAR(64) NOT NULL, 
	detail TEXT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE freeze_all (
	id INTEGER NOT NULL, 
	reason TEXT NOT NULL, 
	"by" VARCHAR(255) NOT NULL, 
	at BIGINT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE identity (
	id INTEGER NOT NULL, 
	journal VARCHAR(36) NOT NULL, 
	made_at BIGINT NOT NULL, 
	came_from VARCHAR(36) DEFAULT '' NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "identity" VALUES(1,'8841ddcb-e429-4edc-a012-77256c8246c6',1795529601296009,'');
CREATE TABLE "incarnations" (
	incarnation VARCHAR(64) NOT NULL, 
	run VARCHAR(64) NOT NULL, 
	attempt INTEGER NOT NULL, 
	started_at BIGINT NOT NULL, 
	last_seen_at BIGINT NOT NULL, 
	ended_at BIGINT, 
	end_reason TEXT NOT NULL, 
	gpus TEXT NOT NULL, 
	released TEXT NOT NULL, asleep_release VARCHAR(16) DEFAULT '' NOT NULL, 
	PRIMARY KEY (incarnation)
);
INSERT INTO "incarnations" VALUES('i1','r',1,1795176000000000,1795176000000000,NULL,'','["g0","g1","g2","g3"]','[]','');
CREATE TABLE leadership (
	id INTEGER NOT NULL, 
	holder VARCHAR(255) NOT NULL, 
	epoch INTEGER NOT NULL, 
	expires_at BIGINT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "leadership" VALUES(1,'0.1.0',1,1795529601726986);
CREATE TABLE ledger_changes (
	day BIGINT NOT NULL, 
	changes BIGINT NOT NULL, 
	PRIMARY KEY (day)
);
CREATE TABLE "node_counters" (
	node VARCHAR(255) NOT NULL, 
	gpu_uuid VARCHAR(64) NOT NULL, 
	energy_mj BIGINT NOT NULL, 
	at BIGINT NOT NULL, 
	monotonic_s FLOAT NOT NULL, 
	boot_id VARCHAR(64) NOT NULL, 
	source VARCHAR(32) NOT NULL, 
	booked_mj BIGINT NOT NULL, 
	unobserved_ms BIGINT NOT NULL, 
	recovered_ms BIGINT NOT NULL, 
	since_us BIGINT NOT NULL, 
	PRIMARY KEY (node, gpu_uuid)
);
CREATE TABLE node_devices (
	gpu_uuid VARCHAR(64) NOT NULL, 
	node VARCHAR(255) NOT NULL, 
	seen_at BIGINT NOT NULL, 
	PRIMARY KEY (gpu_uuid)
);
CREATE TABLE node_tokens (
	digest VARCHAR(64) NOT NULL, 
	node VARCHAR(255) NOT NULL, 
	made_at BIGINT NOT NULL, 
	made_by VARCHAR(255) NOT NULL, 
	ends_at BIGINT, 
	ended_by VARCHAR(255) NOT NULL, 
	PRIMARY KEY (digest)
);
CREATE TABLE nodes (
	node VARCHAR(255) NOT NULL, 
	boot_id VARCHAR(64) NOT NULL, 
	last_seen_at BIGINT NOT NULL, 
	devices TEXT NOT NULL, 
	facts TEXT NOT NULL, 
	retired_at BIGINT, 
	forgotten_at BIGINT, 
	PRIMARY KEY (node)
);
CREATE TABLE operating_points (
	run VARCHAR(64) NOT NULL, 
	point VARCHAR(64) NOT NULL, 
	layout TEXT NOT NULL, 
	gpus INTEGER NOT NULL, 
	clock_mhz INTEGER, 
	tokens_per_s FLOAT NOT NULL, 
	power_w FLOAT NOT NULL, 
	equivalence VARCHAR(16) NOT NULL, 
	evidence VARCHAR(16) NOT NULL, 
	sources TEXT NOT NULL, 
	PRIMARY KEY (run, point)
);
INSERT INTO "operating_points" VALUES('r','A','{"cp":1,"dp_replicate":1,"dp_shard":2,"ep":1,"micro_batch":0,"pp":1,"recompute":false,"schedule":"1F1B","tp":2}',4,NULL,1000.0,1600.0,'numerical','validated','{"power_w":"simulated"}');
INSERT INTO "operating_points" VALUES('r','B','{"cp":1,"dp_replicate":1,"dp_shard":1,"ep":1,"micro_batch":0,"pp":1,"recompute":false,"schedule":"1F1B","tp":2}',2,NULL,550.0,710.0,'numerical','validated','{"power_w":"simulated"}');
CREATE TABLE power_caps (
	id INTEGER NOT NULL, 
	cap_w FLOAT NOT NULL, 
	from_at BIGINT NOT NULL, 
	until_at BIGINT NOT NULL, 
	"by" VARCHAR(255) NOT NULL, 
	reason TEXT NOT NULL, 
	epoch INTEGER NOT NULL, 
	ended_at BIGINT, 
	ended_by VARCHAR(255) NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE reopened_periods (
	id INTEGER NOT NULL, 
	period VARCHAR(32) NOT NULL, 
	timezone VARCHAR(64) NOT NULL, 
	start_at BIGINT NOT NULL, 
	end_at BIGINT NOT NULL, 
	closed_at BIGINT NOT NULL, 
	figures TEXT NOT NULL, 
	reopened_at BIGINT NOT NULL, 
	"by" VARCHAR(255) NOT NULL, 
	reason TEXT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE rollups (
	scenario VARCHAR(16) NOT NULL, 
	run VARCHAR(64) NOT NULL, 
	line VARCHAR(32) NOT NULL, 
	signal VARCHAR(200) NOT NULL, 
	stand_in VARCHAR(200) NOT NULL, 
	quality VARCHAR(16) NOT NULL, 
	energy_quality VARCHAR(64) NOT NULL, 
	day BIGINT NOT NULL, 
	energy_mj BIGINT NOT NULL, 
	unobserved_ms BIGINT NOT NULL, 
	upper_mj BIGINT NOT NULL, 
	upper_ug BIGINT NOT NULL, 
	carbon_ug BIGINT NOT NULL, 
	tokens BIGINT NOT NULL, 
	first_carbon_ug BIGINT NOT NULL, 
	CONSTRAINT rollups_pkey2 PRIMARY KEY (scenario, run, line, signal, stand_in, quality, energy_quality, day)
);
CREATE TABLE run_nodes (
	run VARCHAR(64) NOT NULL, 
	node VARCHAR(255) NOT NULL, 
	PRIMARY KEY (run)
);
CREATE TABLE "runs" (
	run VARCHAR(64) NOT NULL, 
	name VARCHAR(200) NOT NULL, 
	owner_uid BIGINT NOT NULL, 
	incarnation VARCHAR(64) NOT NULL, 
	attempt INTEGER NOT NULL, 
	seq INTEGER NOT NULL, 
	layout TEXT NOT NULL, 
	ranks TEXT NOT NULL, 
	world_size INTEGER NOT NULL, 
	gpus TEXT NOT NULL, 
	step BIGINT NOT NULL, 
	samples BIGINT NOT NULL, 
	tokens BIGINT NOT NULL, 
	tokens_total BIGINT NOT NULL, 
	tokens_per_s FLOAT, 
	loss FLOAT, 
	boundary_every INTEGER NOT NULL, 
	checkpoint_step BIGINT NOT NULL, 
	checkpoint_digest VARCHAR(128) NOT NULL, 
	phase VARCHAR(64) NOT NULL, 
	registered_at BIGINT NOT NULL, 
	last_seen_at BIGINT NOT NULL, 
	incarnation_at BIGINT NOT NULL, 
	outage_from BIGINT, 
	finished_at BIGINT, 
	finish_reason TEXT NOT NULL, 
	catalogue TEXT, 
	catalogue_digest VARCHAR(64) NOT NULL, 
	baseline VARCHAR(64) NOT NULL, 
	deadline BIGINT, 
	frozen TEXT NOT NULL, 
	thawed_at BIGINT, 
	ordered_point VARCHAR(64) NOT NULL, 
	ordered_reason TEXT NOT NULL, 
	clock_mhz INTEGER, 
	clock_at BIGINT, 
	capabilities TEXT NOT NULL, 
	host VARCHAR(255) NOT NULL, 
	pid INTEGER NOT NULL, 
	scheduler_key VARCHAR(255) NOT NULL, 
	released TEXT NOT NULL, 
	best_single VARCHAR(64) NOT NULL, 
	trouble TEXT NOT NULL, 
	speeds TEXT NOT NULL, 
	protocol INTEGER DEFAULT 1 NOT NULL, 
	progress_at BIGINT, 
	pause_share FLOAT DEFAULT 0 NOT NULL, asleep_at BIGINT, wakes_at BIGINT, held_as VARCHAR(255) DEFAULT '' NOT NULL, 
	PRIMARY KEY (run)
);
INSERT INTO "runs" VALUES('r','llm',1000,'i1',1,1000,'{"cp":1,"dp_replicate":1,"dp_shard":2,"ep":1,"micro_batch":0,"pp":1,"recompute":false,"schedule":"1F1B","tp":2}','[0,1,2,3]',4,'["g0","g1","g2","g3"]',10,100,1000,100000,1000.0,2.5,10,0,'','training',1795176000000000,1795176000000000,1795176000000000,NULL,NULL,'','{"digest":"","embodied_g_per_gpu_hour":0.0,"global_batch":0,"idle_power_w_per_gpu":70.0,"job":"llm","points":[{"clock_mhz":null,"dominated_by":"","equivalence":"numerical","evidence":"validated","fingerprint":null,"gpu_power_w":null,"gpus":4,"host_power_w":null,"id":"A","layout":{"cp":1,"dp_replicate":1,"dp_shard":2,"ep":1,"micro_batch":0,"pp":1,"recompute":false,"schedule":"1F1B","tp":2},"memory_gib":null,"parked_power_w":null,"power_w":1600.0,"probe":null,"samples":0,"sources":{"power_w":"simulated"},"speed_spread":null,"spread":null,"tokens_per_s":1000.0,"tolerance":null,"validated_at":null,"validated_by":""},{"clock_mhz":null,"dominated_by":"","equivalence":"numerical","evidence":"validated","fingerprint":null,"gpu_power_w":null,"gpus":2,"host_power_w":null,"id":"B","layout":{"cp":1,"dp_replicate":1,"dp_shard":1,"ep":1,"micro_batch":0,"pp":1,"recompute":false,"schedule":"1F1B","tp":2},"memory_gib":null,"parked_power_w":null,"power_w":710.0,"probe":{"allowed":0.00021,"computed_in":"bfloat16","moved":6.6e-05,"noise":5.3e-05,"orders":1},"samples":0,"sources":{"power_w":"simulated"},"speed_spread":null,"spread":null,"tokens_per_s":550.0,"tolerance":null,"validated_at":null,"validated_by":""}],"power_scope":"gpu","reference":"A","release":"parked","seq_len":0,"simulated":["power_w"],"switch":{"clock_s":0.0,"layout_energy_j":0.0,"layout_s":300.0,"pairs":[],"reacquire_s":null,"source":"assumed"},"tokens_total":100000}','','A',1795176300000000,'',NULL,'','',NULL,NULL,'["in_place","parking"]','node1',0,'','[]','B','','',2,1795176000000000,0.0,NULL,NULL,'');
CREATE TABLE schema_floor (
	id INTEGER NOT NULL, 
	oldest VARCHAR(32) NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "schema_floor" VALUES(1,'0011');
CREATE TABLE stays (
	run VARCHAR(64) NOT NULL, 
	at BIGINT NOT NULL, 
	layout TEXT NOT NULL, 
	clock_mhz INTEGER, 
	switching INTEGER NOT NULL, 
	tokens BIGINT NOT NULL, 
	PRIMARY KEY (run, at)
);
INSERT INTO "stays" VALUES('r',1795176000000000,'{"cp":1,"dp_replicate":1,"dp_shard":2,"ep":1,"micro_batch":0,"pp":1,"recompute":false,"schedule":"1F1B","tp":2}',NULL,0,0);
INSERT INTO "stays" VALUES('r',1795176000000001,'{"cp":1,"dp_replicate":1,"dp_shard":2,"ep":1,"micro_batch":0,"pp":1,"recompute":false,"schedule":"1F1B","tp":2}',NULL,1,1000);
CREATE TABLE switches (
	"plan" VARCHAR(64) NOT NULL, 
	run VARCHAR(64) NOT NULL, 
	open_run VARCHAR(64), 
	attempt INTEGER NOT NULL, 
	epoch INTEGER NOT NULL, 
	from_point VARCHAR(64) NOT NULL, 
	to_point VARCHAR(64) NOT NULL, 
	wire_order TEXT NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	requested_by VARCHAR(64) NOT NULL, 
	reason TEXT NOT NULL, 
	predicted_ug BIGINT, 
	switch_cost_ug BIGINT, 
	created_at BIGINT NOT NULL, 
	updated_at BIGINT NOT NULL, 
	detail TEXT NOT NULL, 
	evidence TEXT NOT NULL, 
	PRIMARY KEY ("plan"), 
	UNIQUE (open_run)
);
INSERT INTO "switches" VALUES('p1','r','r',1,1,'A','B','{"attempt":1,"epoch":1,"journal":"","layout":{"cp":1,"dp_replicate":1,"dp_shard":1,"ep":1,"micro_batch":0,"pp":1,"recompute":false,"schedule":"1F1B","tp":2},"mode":"in_place","not_before_step":1,"plan":"p1","point":"B","ranks":[0,1],"reason":"","run":"r","sleeps_s":0.0,"valid_until_step":99,"wakes_at":null}','rebuilding','policy','the grid is dirty.',500000,100000,1795176000000000,1795176000000000,'','{}');
CREATE TABLE "token_marks" (
	run VARCHAR(64) NOT NULL, 
	slot_start BIGINT NOT NULL, 
	slot_end BIGINT NOT NULL, 
	tokens BIGINT NOT NULL, 
	at BIGINT NOT NULL, 
	PRIMARY KEY (run, slot_start)
);
INSERT INTO "token_marks" VALUES('r',0,1795176000000000,0,1795176000000000);
CREATE TABLE transitions (
	"plan" VARCHAR(64) NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	run VARCHAR(64) NOT NULL, 
	at BIGINT NOT NULL, 
	step BIGINT NOT NULL, 
	elapsed_s FLOAT NOT NULL, 
	detail TEXT NOT NULL, 
	evidence TEXT NOT NULL, 
	PRIMARY KEY ("plan", state)
);
INSERT INTO "transitions" VALUES('p1','announced','r',1795176000000000,20,1.0,'','{}');
INSERT INTO "transitions" VALUES('p1','checkpointing','r',1795176000000000,20,1.0,'','{}');
INSERT INTO "transitions" VALUES('p1','rebuilding','r',1795176000000000,20,1.0,'','{}');
CREATE INDEX carbon_forecasts_by_issue ON carbon_forecasts (signal, source, issued_at);
CREATE INDEX carbon_points_by_start ON carbon_points (signal, start_at);
CREATE INDEX ix_decisions_run ON decisions (run);
CREATE INDEX ix_events_at ON events (at);
CREATE INDEX ix_switches_run ON switches (run);
CREATE INDEX ix_transitions_run ON transitions (run);
CREATE INDEX budget_plans_by_period ON budget_plans (name, start_at);
CREATE INDEX ix_incarnations_run ON incarnations (run);
CREATE INDEX energy_by_start ON energy (slot_start);
CREATE INDEX energy_unobserved ON energy (slot_start) WHERE unobserved_ms > 0;
CREATE INDEX emissions_by_start ON emissions (slot_start);
CREATE INDEX ix_node_devices_node ON node_devices (node);
CREATE INDEX ix_node_tokens_node ON node_tokens (node);
COMMIT;
