"""Files that are checked when they are read, and written whole."""

from tf_convpar.files._cache_folder import CACHE_FOLDER as CACHE_FOLDER
from tf_convpar.files._cache_folder import cache_folder as cache_folder
from tf_convpar.files._checked import Checked as Checked
from tf_convpar.files._checked import Count as Count
from tf_convpar.files._checked import Name as Name
from tf_convpar.files._checked import Natural as Natural
from tf_convpar.files._checked import Quantity as Quantity
from tf_convpar.files._checked import Rate as Rate
from tf_convpar.files._checked import Some as Some
from tf_convpar.files._checked import Unexpected as Unexpected
from tf_convpar.files._checked import check_distinct as check_distinct
from tf_convpar.files._checked import checked as checked
from tf_convpar.files._checked import shown as shown
from tf_convpar.files._form import Form as Form
from tf_convpar.files._form import kind_of as kind_of
from tf_convpar.files._form import read_json as read_json
from tf_convpar.files._running import DeviceNow as DeviceNow
from tf_convpar.files._running import Running as Running
from tf_convpar.files._running import age_s as age_s
from tf_convpar.files._running import running as running
from tf_convpar.files._running import say as say
from tf_convpar.files._running import say_no_more as say_no_more
from tf_convpar.files._whole import remove_parts as remove_parts
from tf_convpar.files._whole import replace as replace
from tf_convpar.files._whole import whole as whole
