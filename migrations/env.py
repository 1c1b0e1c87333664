"""What alembic runs: the migrations, on the connection that `upgrade` opened and locked."""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    render_as_batch=True,
    transactional_ddl=False,
)
context.run_migrations()
