"""Where Alembic enters: runs revisions over the connection that it was handed."""

from alembic import context

from evalsvc.store import job_tables as _job_tables  # noqa: F401, its tables belong to the schema
from evalsvc.store.schema import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,
    compare_type=True,
    compare_server_default=False,
)
with context.begin_transaction():
    context.run_migrations()
